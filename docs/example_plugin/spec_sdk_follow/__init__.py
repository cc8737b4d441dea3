"""An example of a third-party drafter for spec-sdk."""

from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins():
    # imported only when asked for: reading this package's YAML imports this module
    from spec_sdk_follow.drafter import Follow

    return [Follow]
