"""Where figures are kept that native kernels were timed for."""

from __future__ import annotations

from pathlib import Path

import torch

from spec_sdk_backends import measured_once
from spec_sdk_backends.native.library import library, uses_amx


def place_of(what: str, facts: str) -> Path:
    """Of the figure called ``what`` that hangs on ``facts``, and on the kernels, torch and its threads."""
    facts = f"{Path(library()._name).name} {uses_amx()} {torch.__version__} {torch.get_num_threads()} {facts}"
    return measured_once.place_of("native", what, facts)
