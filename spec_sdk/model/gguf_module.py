"""The prediction module of a GGUF file: one more block behind the model's own, with what joins it to the model.

llama.cpp's converter also writes files that hold nothing of the model but embedding, final norm and output head beside
the module.
"""

from __future__ import annotations

import re
from dataclasses import replace

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import layers_of
from spec_sdk.model.gguf_reader import GGUFFile

FIRST = "blk.0."
"""What the names of a model's first layer begin with."""
PARTS = "nextn"
"""What those of a module's tensors that no other layer has begin with in their block."""
_OF_MODULE = re.compile(rf"blk\.(\d+)\.{PARTS}\.")
_FINAL_NORM = f"{FIRST}{PARTS}.shared_head_norm.weight"


def module_block(gguf: GGUFFile) -> int | None:
    """Which block of the file is its prediction module; None for a file without, though it may count one.

    Raises UserError for a file of several, and for one whose module is not where its counts of blocks say.
    """
    found = {int(match[1]) for name in gguf.tensors if (match := _OF_MODULE.match(name))}
    if not found:
        return None
    meta = Fields(gguf.metadata, gguf.where)
    architecture = meta.text("general.architecture", "")
    key = f"{architecture}.nextn_predict_layers"
    if (modules := max(len(found), meta.count(key, 0))) > 1:
        raise UserError(f"{gguf.where}: has {modules} prediction modules ({key}); only a single one is read")
    if found != {layers := layers_of(gguf, architecture)}:
        raise UserError(
            f"{gguf.where}: has its prediction module in block {min(found)}, and {architecture}.block_count less {key} "
            f"is {layers}"
        )
    return layers


def is_module_alone(gguf: GGUFFile) -> bool:
    """Whether the file is of a prediction module without its model."""
    return f"{FIRST}attn_norm.weight" not in gguf.tensors and any(map(_OF_MODULE.match, gguf.tensors))


class ModuleAsModel(GGUFFile):
    """The module of a file as a model of one layer, ``block`` of the file, whose names begin with :data:`FIRST`."""

    def __init__(self, gguf: GGUFFile, block: int) -> None:
        self.path, self.where, self._parts = gguf.path, gguf.where, gguf._parts
        own, architecture = f"blk.{block}.", gguf.metadata["general.architecture"]
        self.tensors = {
            name.replace(own, FIRST): replace(tensor, name=name.replace(own, FIRST))
            for name, tensor in gguf.tensors.items()
            if name.startswith(own) or not name.startswith("blk.")
        }
        if _FINAL_NORM not in self.tensors and "output_norm.weight" in self.tensors:
            # as llama.cpp does
            self.tensors[_FINAL_NORM] = replace(self.tensors["output_norm.weight"], name=_FINAL_NORM)
        self.metadata = {
            **gguf.metadata,
            f"{architecture}.block_count": 1,
            f"{architecture}.nextn_predict_layers": 0,
            f"{architecture}.leading_dense_block_count": 0,
            f"{architecture}.attention.recurrent_layers": [False],
        }
