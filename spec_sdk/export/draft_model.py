"""A draft model as a directory of Hugging Face that is whole: nothing in it is the target's, or in few bits.

Legend: R tokens that can be drafted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.export.exported_head import ARCHITECTURES
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.borrowed_weights import KEY, BorrowingModel
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.packed_weights import published
from spec_sdk.model.text_settings import text_settings
from spec_sdk.model.tokenizer import TOKENIZER_NAME

TOKENIZER_FILES = (
    TOKENIZER_NAME,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def draft_model_files(
    draft: Checkpoint, target: Checkpoint, dtype: torch.dtype
) -> tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]:
    """config.json, and the tensors under their names in Hugging Face's layout, in ``dtype``.

    Raises UserError for a draft model of another vocabulary, or of a family that engines have no class for.
    """
    if draft.config.vocab_size != target.config.vocab_size:
        raise UserError(
            f"model.draft: {draft.name} has {draft.config.vocab_size} tokens, and {target.name} "
            f"{target.config.vocab_size}; programs that draft with a model want one vocabulary"
        )
    architecture = ARCHITECTURES.get(draft.config.architecture)
    if architecture is None:
        raise UserError(
            f"model.draft: models of '{draft.config.architecture}' are not written; these are: "
            f"{', '.join(ARCHITECTURES)}"
        )
    source, table = BorrowingModel(draft, draft.borrowed, target), weights_of(draft.config)
    whole = published({name: source.tensor(name).to(dtype) for name in sorted(table.shapes)}, table)
    tensors = {name.removeprefix(draft.config.prefix): tensor.contiguous() for name, tensor in whole.items()}
    values = text_settings(read_json_object(draft.directory / "config.json"))
    stored = str(dtype).removeprefix("torch.")
    config = {
        **values,
        "architectures": [architecture],
        "dtype": stored,
        "torch_dtype": stored,
        "tie_word_embeddings": draft.config.tie_embeddings,
    }
    for key in (KEY, "quantization_config"):
        config.pop(key, None)
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(rope.get("rope_theta"), int | float):
        # programs before transformers 5 read it here
        config.setdefault("rope_theta", draft.config.rope_theta)
    return config, tensors


def tokenizer_files(draft: Checkpoint, target: Checkpoint) -> list[Path]:
    """The tokenizer's files: the draft model's, or the target's, which has the same tokens."""
    own = draft if (draft.directory / TOKENIZER_NAME).is_file() else target
    return [own.directory / name for name in TOKENIZER_FILES if (own.directory / name).is_file()]
