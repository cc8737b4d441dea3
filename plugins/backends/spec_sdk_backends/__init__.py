"""First-party backends."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_backends.accelerate import AccelerateBackend
    from spec_sdk_backends.cpu import CpuBackend
    from spec_sdk_backends.cuda import CudaBackend

    return [CpuBackend, CudaBackend, AccelerateBackend]
