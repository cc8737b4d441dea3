"""Prediction modules of GGUF files, as their families publish them: directories that hold a module and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spec_sdk.errors import UserError
from spec_sdk.files import write_json
from spec_sdk.model.architectures import read_config, read_gguf_config, weights_of
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.claimed_counts import check_counts
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.gguf_convert import check_all_read, require_room
from spec_sdk.model.gguf_module import FIRST, PARTS, ModuleAsModel, module_block
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_tensors import GGUFWeights, dequantized
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.safetensors_writer import write_safetensors
from spec_sdk.model.source_gguf import gguf_entry
from spec_sdk.model.source_progress import byte_progress
from spec_sdk.model.weight_table import MODEL, VOCABULARY, Dim, Weight, WeightTable

VERSION = 1
"""Part of what a directory was made from: raise it when the same GGUF file would be written differently."""
_BOTH = Dim("embedding and state", lambda config: 2 * config.hidden_size)
_SHAPES = {
    "eh_proj": (MODEL, _BOTH),
    "enorm": (MODEL,),
    "hnorm": (MODEL,),
    "shared_head_norm": (MODEL,),
    "embed_tokens": (VOCABULARY, MODEL),
    "shared_head_head": (VOCABULARY, MODEL),
}
"""What a module has beside its layer, in llama.cpp's words."""
_OF_TARGET = {
    "embed_tokens": ("token_embd.weight",),
    "shared_head_head": ("output.weight", "token_embd.weight"),
}
"""What files may repeat there of the model: the first of these that there is."""
_ROWS, _ROUNDED = 64, 0.25
"""Rows that are compared of matrices in other bits, and how far they may be from each other, in squares of the norm:
independent ones are 2 apart, and 2 bits cost a normal distribution 0.12 (Max, 1960).
"""


@dataclass(frozen=True)
class _Names:
    """How a family calls a module's tensors. ``layer``: what those of its layer begin with; ``parts``: the others."""

    layer: str
    parts: Mapping[str, str]


_DEEPSEEK = _Names(
    "model.layers.1.",
    {
        "eh_proj": "model.layers.1.eh_proj",
        "enorm": "model.layers.1.enorm",
        "hnorm": "model.layers.1.hnorm",
        "shared_head_norm": "model.layers.1.shared_head.norm",
        "embed_tokens": "model.layers.1.embed_tokens",
        "shared_head_head": "model.layers.1.shared_head.head",
    },
)
_QWEN = _Names(
    "mtp.layers.0.",
    {
        "eh_proj": "mtp.fc",
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "shared_head_norm": "mtp.norm",
        "embed_tokens": "mtp.embed_tokens",
        "shared_head_head": "mtp.lm_head",
    },
)
_FAMILIES = {
    "deepseek2": _DEEPSEEK,
    "glm4moe": _DEEPSEEK,
    "qwen3next": _QWEN,
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
}
"""By the file's architecture."""


class NoModule(UserError):
    """A file has no prediction module."""


def module_of_gguf(path: Path) -> Path:
    """A directory with the prediction module of the GGUF file ``path``, from the cache if the file has not changed.

    Raises :class:`NoModule` for a file without one, and UserError for one that cannot be used and for a full disk.
    """
    entry, place = gguf_entry(path, "mtp-", {"module": VERSION})
    return entry.obtain(lambda directory: _write(GGUFFile(place), directory, path.name))


def _write(gguf: GGUFFile, directory: Path, label: str) -> None:
    check_counts(gguf.metadata, gguf.shapes, gguf.where)
    block = module_block(gguf)
    if block is None:
        raise NoModule(f"{gguf.where}: has no prediction module (MTP), the only draft head that is read of GGUF files")
    architecture = gguf.metadata["general.architecture"]
    if architecture not in _FAMILIES:
        raise UserError(
            f"{gguf.where}: prediction modules of '{architecture}' files are not read (these are: "
            f"{', '.join(_FAMILIES)})"
        )
    names = _FAMILIES[architecture]
    with _told_as_stored(block):
        module = ModuleAsModel(gguf, block)
        values = read_gguf_config(module)
        config = read_config(values, module.where)
        weights = GGUFWeights(module, config, _table(module, config, names))
    plans = {_renamed(name, names.layer): (name, plan) for name, plan in weights.plans.items()}
    total = sum(plan.size for _, plan in plans.values())
    require_room(directory, total)
    write_json(directory / "config.json", values)
    with byte_progress(f"converting the prediction module of {label}", total) as advance:
        write_safetensors(
            directory / SINGLE_NAME,
            {name: plan for name, (_, plan) in plans.items()},
            lambda name: weights.chunks(plans[name][0]),
            advance,
        )


def _table(module: GGUFFile, config: ModelConfig, names: _Names) -> WeightTable:
    """The tensors to be written. Raises UserError unless these, and what is the target's, are all that there is."""
    model = weights_of(config)
    rows = [model.row(role) for role in model.roles]
    less_one = model.row("final_norm").gain_minus_one
    parts = {
        part: Weight(
            part,
            f"{names.parts[part]}.weight",
            f"{FIRST}{PARTS}.{part}.weight",
            shape,
            gain_minus_one=less_one and len(shape) == 1,
        )
        for part, shape in _SHAPES.items()
        if part not in _OF_TARGET or f"{FIRST}{PARTS}.{part}.weight" in module.tensors
    }
    whole = WeightTable([*rows, *parts.values()], config)
    check_shapes(whole.gguf_shapes, module.shapes, module.where)
    check_all_read(module, whole)
    own = [row for part, row in parts.items() if not _is_targets(module, part)]
    return WeightTable([*(row for row in rows if row.per_layer), *own], config)


def _is_targets(module: GGUFFile, part: str) -> bool:
    """Whether a matrix is the target's own, maybe rounded to other bits."""
    theirs = next((name for name in _OF_TARGET.get(part, ()) if name in module.tensors), None)
    if theirs is None:
        return False
    own = f"{FIRST}{PARTS}.{part}.weight"
    if module.tensors[own].kind == module.tensors[theirs].kind:
        return module.raw(own) == module.raw(theirs)
    try:
        some, others = (_some_rows(module, name) for name in (own, theirs))
    except NotImplementedError:
        # the module's own is refused where it is read
        return False
    return bool(np.square(some - others).sum() < _ROUNDED * np.square(others).sum())


def _some_rows(module: GGUFFile, name: str) -> np.ndarray:
    tensor = module.tensors[name]
    stored = np.frombuffer(module.raw(name), np.uint8).reshape(tensor.shape[0], -1)
    return dequantized(np.ascontiguousarray(stored[:: max(1, len(stored) // _ROWS)]), tensor.kind)


def _renamed(name: str, layer: str) -> str:
    first = "model.layers.0."
    return layer + name.removeprefix(first) if name.startswith(first) else name


@contextmanager
def _told_as_stored(block: int) -> Iterator[None]:
    """Have errors name tensors as the file does."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(FIRST, f"blk.{block}.")) from error
