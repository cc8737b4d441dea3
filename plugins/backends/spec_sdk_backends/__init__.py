"""First-party backends."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl
from spec_sdk.kept_files import KeptFiles


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_backends.accelerate import AccelerateBackend
    from spec_sdk_backends.cpu import CpuBackend
    from spec_sdk_backends.cuda import CudaBackend
    from spec_sdk_backends.ttnn.backend import TtnnBackend

    return [CpuBackend, CudaBackend, AccelerateBackend, TtnnBackend]


@hookimpl
def spec_sdk_kept_files() -> list[KeptFiles]:
    # a library, what was measured of it, and what a killed compiler left
    patterns = ("*.so", "rows-*.json", ".compiling-*")
    return [KeptFiles("native", "files of native kernels", patterns)]
