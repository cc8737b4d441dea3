"""A trained draft model as a directory that ``model.draft=DIR`` loads, in the layout of Hugging Face.

Legend: O outputs, I inputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.files import write_json
from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.borrowed_weights import KEY, VOCABULARY
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.layers_of import settings_of_layers
from spec_sdk.model.packed_weights import published
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.stored_matrices import CODES, OFFSET, SCALE
from spec_sdk.model.text_settings import text_settings
from spec_sdk.ops.quantized import GROUP
from spec_sdk.ops.quantizing import quantize
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.sample_shards import save_whole
from spec_sdk.training.trainable import TrainableDraft

BITS = {"int8": 8, "int4": 4}
STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def draft_settings(target: Checkpoint, shape: DraftShape, whole: bool) -> dict[str, Any]:
    """The config.json of a draft model cut out of ``target``; unless it is ``whole``, it takes embedding and output
    head from the target.

    Raises UserError for a target whose config.json cannot say of some of its layers what it says of all.
    """
    values = text_settings(read_json_object(target.directory / "config.json"))
    values, config = settings_of_layers(values, target.config, shape.layers), shape.config(target.config)
    values |= {
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if "shared_intermediate_size" in values:
        # Granite 4's name of it
        values["shared_intermediate_size"] = config.intermediate_size
    if not whole:
        values[KEY] = ["embedding"] if target.config.tie_embeddings else ["embedding", "head"]
    if _as_read(values, target) != config:
        raise UserError(
            f"task.layers: the config.json of {target.name} says of its layers by their number which are of what kind, "
            "and cannot say it of these alone; choose all layers of one kind, or others"
        )
    return values


def settings_of_draft(draft: Checkpoint, whole: bool) -> dict[str, Any]:
    """The config.json of a draft model that goes on from ``draft``. ``whole``: with embedding and output head."""
    values = text_settings(read_json_object(draft.directory / "config.json"))
    values["tie_word_embeddings"] = draft.config.tie_embeddings
    # weights are written as task.stored says, whatever they were
    values.pop("quantization_config", None)
    if whole:
        values.pop(KEY, None)
    return values


def write_draft(
    directory: Path,
    model: TrainableDraft,
    target: Checkpoint,
    settings: Mapping[str, Any],
    stored: str,
    token_R: torch.Tensor | None = None,
) -> int:
    """Write config, weights and the target's tokenizer files; return the bytes of the weights. Raises OSError.

    ``stored``: one of :data:`BITS`, matrices with a scale for every 32 of a row, or of :data:`STORED`.
    ``token_R``: the tokens that it drafts; None for all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    ends = () if KEY in settings else model.end_tensors()
    for name, tensor in published(dict((*model.tensors(), *ends)), weights_of(model.config)).items():
        if stored in BITS and tensor.dim() == 2 and tensor.shape[1] % GROUP == 0:
            matrix = quantize(tensor.cpu(), BITS[stored])
            tensors[name + CODES], tensors[name + SCALE] = matrix.codes_OC, matrix.scale_OG
            if matrix.offset_OG is not None:
                tensors[name + OFFSET] = matrix.offset_OG
        else:
            tensors[name] = tensor.cpu().to(STORED.get(stored, torch.bfloat16)).contiguous()
    if token_R is not None:
        tensors[VOCABULARY] = token_R.cpu().int()
    save_whole(directory / SINGLE_NAME, tensors, {"format": "pt"})
    for name in TOKENIZER_FILES:
        if (target.directory / name).is_file():
            shutil.copyfile(target.directory / name, directory / name)
    dtype = "float32" if stored == "float32" else "bfloat16"
    write_json(directory / "config.json", {**settings, "dtype": dtype})
    return (directory / SINGLE_NAME).stat().st_size


def _as_read(values: Mapping[str, Any], target: Checkpoint) -> ModelConfig:
    return read_config(values, f"the draft model of {target.name}, config.json")
