"""Tiny GGUF files with a prediction module, as llama.cpp's converter writes them, and the same in Hugging Face layout.

The module's layer is the last of a random model, whose other layers are the target.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from tests.checkpoints.gguf_files import SHAPE, quantized, write_gguf
from tests.checkpoints.gguf_recurrent import DELTA_SIZES, QWENS, TILED
from tests.support.tiny_checkpoints import DEEPSEEK_YARN
from tests.support.tiny_heads import write_head

LAYERS, WIDTH = 2, SHAPE["hidden_size"]
"""Of the target."""
BLOCK = f"blk.{LAYERS}."
"""What the names of the module's tensors begin with."""
_LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
    "rope_interleave": True,
    "attention_bias": False,
}
_HYBRID = {"layer_types": ["linear_attention", "full_attention", "full_attention"], "tie_word_embeddings": False}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": ("qwen3_5", {**TILED, **_HYBRID}),
    "qwen35moe": ("qwen3_5_moe", {**DELTA_SIZES, **_HYBRID}),
    "qwen3next": ("qwen3_next", {**TILED, **_HYBRID, "mlp_only_layers": []}),
    "glm4moe": ("glm4_moe", {"moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}),
    # as published; of YaRN's two weights a file says the second alone
    "deepseek2": ("deepseek_v3", {**_LATENTS, "rope_parameters": {**DEEPSEEK_YARN["rope_parameters"], "mscale": 0.9}}),
    "GLM 4.7 Flash": ("glm4_moe_lite", _LATENTS),
}
"""By llama.cpp's name of the architecture, where there is one model of it."""
PARTS = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
_QWEN_PARTS = dict(zip(PARTS, ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), strict=True))
Tensors = dict[str, np.ndarray]
Change = Callable[[gguf.GGUFWriter, Tensors], object]


def module_parts(width: int) -> Tensors:
    """What joins the module to the target, in DeepSeek's words: gains as they are multiplied with."""
    rng = np.random.default_rng(7)
    gains = {part: 1 + 0.2 * rng.standard_normal(width, np.float32) for part in PARTS[1:]}
    return {"eh_proj": 2 * rng.standard_normal((width, 2 * width), np.float32) * width**-0.5, **gains}


def write_with_module(
    path: Path,
    name: str,
    kind: str | Callable[[str], str] = "F32",
    change: Change | None = None,
    alone: bool = False,
    **sizes: Any,
) -> PreTrainedModel:
    """Write one of :data:`MODELS` with its module, matrices stored as ``kind``; return the model, whose last layer is
    the module's. ``change``: of what the file says, and of the module's parts by their names in the file. ``alone``: a
    file of the module without the target's layers.
    """
    family, own = MODELS[name]
    kind_of = (lambda name: kind) if isinstance(kind, str) else kind

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_nextn_predict_layers(1)
        parts = module_parts(WIDTH)
        named = {part_name(part): values for part, values in parts.items()}
        if change is not None:
            change(writer, named)
        for stored, values in named.items():
            as_type = gguf.GGMLQuantizationType[kind_of(stored)]
            matrix = values.ndim > 1 and as_type.name != "F32"
            data = quantized(values, as_type) if matrix else values
            writer.add_tensor(stored, data, raw_dtype=as_type if matrix else None)
        if alone:
            leave_out(writer, lambda stored: stored.startswith("blk.") and not stored.startswith(BLOCK))

    return write_gguf(path, family, kind, customize=add, num_hidden_layers=LAYERS + 1, **{**own, **sizes})


def part_name(part: str) -> str:
    """What the file calls a part of the module."""
    return f"{BLOCK}nextn.{part.replace('.', '_')}.weight"


def leave_out(writer: gguf.GGUFWriter, unwanted: Callable[[str], bool]) -> None:
    """Have the writer pass over tensors that are added from now on."""
    add_tensor = writer.add_tensor

    def add_wanted(name: str, *args: Any, **options: Any) -> None:
        if not unwanted(name):
            add_tensor(name, *args, **options)

    writer.add_tensor = add_wanted  # type: ignore[method-assign]


def write_published(directory: Path, model: PreTrainedModel) -> Path:
    """The module of a model of :func:`write_with_module` in a directory, as its family's checkpoints have it."""
    config = model.config
    by_qwen, last = config.model_type in QWENS, f"model.layers.{LAYERS}."
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in revert_weight_conversion(model, model.state_dict()).items():
        if name.startswith(last):
            tensors[name.replace(last, "mtp.layers.0.") if by_qwen else name] = tensor
    for part, values in module_parts(config.hidden_size).items():
        stored = values - 1 if by_qwen and values.ndim == 1 else values
        tensors[f"mtp.{_QWEN_PARTS[part]}.weight" if by_qwen else f"{last}{part}.weight"] = torch.from_numpy(stored)
    said = {**config.to_dict(), "num_hidden_layers": LAYERS}
    if by_qwen:
        said["layer_types"] = said["layer_types"][:LAYERS]
    return write_head(directory, said, tensors)
