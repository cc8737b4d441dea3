"""The modules of the example of a third-party package, without installing it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import spec_sdk

SOURCE = Path(spec_sdk.__file__).parent.parent / "docs" / "example_plugin" / "spec_sdk_follow"


def example(module: str) -> Any:
    """The example's ``module``: drafter, growth or runner."""
    name = f"example_of_a_{module}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SOURCE / f"{module}.py")
        assert spec is not None and spec.loader is not None
        # dataclasses look their module up
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
