"""spec-sdk: speculative decoding on three levels (tokens, layers, attention) in one loop, built from plugins."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__version__ = "0.1.0"


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
