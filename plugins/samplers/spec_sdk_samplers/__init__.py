"""First-party samplers."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_samplers.exact import ExactSampler
    from spec_sdk_samplers.reference import ReferenceSampler
    from spec_sdk_samplers.sigmoid import SigmoidSampler

    return [ReferenceSampler, ExactSampler, SigmoidSampler]
