"""An example of a third-party package for spec-sdk: a drafter, a growth and a runner for drafters with a model, and a
sampler.
"""

from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins():
    # imported only when asked for: reading this package's YAML imports this module
    from spec_sdk_follow.drafter import Follow
    from spec_sdk_follow.growth import Confident
    from spec_sdk_follow.runner import SkipLayers
    from spec_sdk_follow.sampler import NSigma

    return [Follow, Confident, SkipLayers, NSigma]
