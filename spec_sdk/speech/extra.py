"""The packages of the extra ``speech``, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from spec_sdk.errors import UserError


def from_extra(module: str, option: str) -> Any:
    """A module of the extra. Raises UserError, beginning with ``option``, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(f"{option}: {package} is not installed: pip install 'spec-sdk[speech]'") from error
    except OSError as error:
        # soundfile's wheels bring libsndfile along; built from source it may be missing
        raise UserError(f"{option}: {module} cannot be loaded: {error}") from error
