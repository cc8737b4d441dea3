"""A random assistant of the tiny Gemma 4 whose last layers share K and V, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig, PreTrainedModel

from tests.support.tiny_checkpoints import GEMMA4, SHAPE, VOCABULARY

TARGET = "gemma4_small"
CLUSTERED: dict[str, Any] = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 4}
TEXT: dict[str, Any] = {
    **SHAPE,
    **GEMMA4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "num_kv_shared_layers": 4,
    "vocab_size_per_layer_input": 0,
}


def write_assistant(directory: Path, seed: int = 5, text: dict[str, Any] | None = None, **options: Any) -> Any:
    """Save one into ``directory``; return the model."""
    # transformers 5.23 makes none whose layers all share K and V
    modes = property(lambda self: ["reuse"] * self.num_hidden_layers)
    with mock.patch.object(Gemma4TextConfig, "kv_sharing_modes", modes):
        config = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**{**TEXT, **(text or {})}),
            backbone_hidden_size=SHAPE["hidden_size"],
            **options,
        )
        torch.manual_seed(seed)
        made = Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    _randomise(made)
    made.save_pretrained(directory)
    return made


def _randomise(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
            if name.endswith("q_norm.weight"):
                parameter.mul_(0.25)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.2 * torch.rand_like(buffer))
            if name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(VOCABULARY))
