"""First-party growths."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_growth.auto import AutoGrowth
    from spec_sdk_growth.beam import BeamGrowth
    from spec_sdk_growth.dynamic import DynamicGrowth
    from spec_sdk_growth.static import StaticGrowth

    return [AutoGrowth, BeamGrowth, DynamicGrowth, StaticGrowth]
