"""An example of a third-party package for spec-sdk: a drafter, a growth and a runner for drafters with a model, a
sampler, a verifier and a policy.
"""

from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins():
    # imported only when asked for: reading this package's YAML imports this module
    from spec_sdk_follow.drafter import Follow
    from spec_sdk_follow.growth import Confident
    from spec_sdk_follow.policy import Resting
    from spec_sdk_follow.runner import SkipLayers
    from spec_sdk_follow.sampler import NSigma
    from spec_sdk_follow.verifier import FirstDraws

    return [Follow, Confident, SkipLayers, NSigma, FirstDraws, Resting]
