"""spec-sdk: speculative decoding on three levels (tokens, layers, attention) in one loop, built from plugins.

The library API (docs/python_api.md) is loaded when it is first asked for: importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.errors import UserError
from spec_sdk.version import __version__

if TYPE_CHECKING:
    from spec_sdk.api.answer import Answer, Part
    from spec_sdk.api.engine import Engine
    from spec_sdk.api.registering import register
    from spec_sdk.api.request import Request
    from spec_sdk.model.in_memory import InMemoryModel
    from spec_sdk.sampling_params import SamplingParams

__all__ = [
    "Answer",
    "Engine",
    "InMemoryModel",
    "Part",
    "Request",
    "SamplingParams",
    "UserError",
    "__version__",
    "register",
]

_HOMES = {
    "Answer": "spec_sdk.api.answer",
    "Engine": "spec_sdk.api.engine",
    "InMemoryModel": "spec_sdk.model.in_memory",
    "Part": "spec_sdk.api.answer",
    "Request": "spec_sdk.api.request",
    "SamplingParams": "spec_sdk.sampling_params",
    "register": "spec_sdk.api.registering",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _alias_conf() -> None:
    """Make ``../conf`` importable as ``spec_sdk.conf`` when running from a checkout; in a wheel it already is."""
    here = Path(__file__).parent
    source = here.parent / "conf"
    init = source / "__init__.py"
    if (here / "conf").is_dir() or not init.is_file():
        return
    name = f"{__name__}.conf"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(source)])
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {init} as {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_alias_conf()
