"""The layouts that are written: which heads each holds, and which programs serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.export.exported_head import ExportedHead
from spec_sdk.export.medusa_format import medusa_files
from spec_sdk.export.safeailab_format import safeailab_files
from spec_sdk.export.speculators_format import speculators_files
from spec_sdk.export.zlab_format import zlab_files

Files = tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]
"""config.json, and the tensors under the names that they are stored by."""


@dataclass(frozen=True)
class Format:
    """``methods``: of the heads that it holds. ``files``: raises UserError for a head that it cannot say all of.

    ``whole``: its files have embedding and output rows, those of the target where a head has none.
    """

    name: str
    methods: tuple[str, ...]
    files: Callable[[ExportedHead], Files]
    whole: bool = False


FORMATS = (
    Format("speculators", ("eagle3", "peagle", "dflash", "dspark"), speculators_files, whole=True),
    Format("safeailab", ("eagle", "eagle3"), safeailab_files),
    Format("zlab", ("dflash", "dspark"), zlab_files),
    Format("medusa", ("medusa",), medusa_files),
)
_REFUSED = {
    "hydra": "neither vLLM nor SGLang serves Hydra heads, and none of the formats holds them",
    "mtp": "a prediction module is part of its target's checkpoint, which vLLM and SGLang draft with as it is",
}
HF = "hf"
"""The format of draft models: directories of Hugging Face."""


def format_for(method: str, name: str) -> Format:
    """The format called ``name``, or with ``auto`` the first that holds heads of ``method``.

    Raises UserError for one that does not hold them, and for heads that are not written at all.
    """
    if method in _REFUSED:
        raise UserError(f"task=export: {_REFUSED[method]}")
    fitting = [each for each in FORMATS if method in each.methods]
    for each in fitting:
        if name in ("auto", each.name):
            return each
    names = [each.name for each in fitting]
    raise UserError(
        f"task.format: {name} does not hold heads of {method}; use {' or '.join(names)}{did_you_mean(name, names)}"
    )
