"""Tiny random P-EAGLE heads on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.draft_heads.loading import PARALLEL_EAGLE_HEADS
from spec_sdk.model.draft_heads.peagle_session import PEagleSession
from spec_sdk.model.target_ends import TargetEnds
from tests.support.tiny_heads import HeadSizes, _Random, eagle3_tensors, layer_tensors, load_kind, write_head

MASK = 3


def peagle_tensors(
    sizes: HeadSizes, layers: int = 2, seed: int = 0, prefix: str = "midlayer", axes: int = 2
) -> dict[str, torch.Tensor]:
    """EAGLE-3's, with further layers and the state that stands for those that are missing."""
    tensors, random = eagle3_tensors(sizes, seed, prefix), _Random(seed + 100)
    for i in range(1, layers):
        tensors |= layer_tensors(random, f"layers.{i}", sizes, sizes.M)
        tensors[f"layers.{i}.input_layernorm.weight"] = random.gain(sizes.M)
    hidden = torch.randn(sizes.taps * sizes.S, generator=torch.Generator().manual_seed(seed + 200))
    return {**tensors, "mask_hidden": hidden.view(*[1] * (axes - 1), -1)}


def peagle_config(sizes: HeadSizes, layers: int = 2, **more: Any) -> dict[str, Any]:
    """As trainers write it that know vLLM's keys."""
    return {
        **sizes.config(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": layers,
        "draft_vocab_size": sizes.W,
        "target_hidden_size": sizes.S,
        "ptd_token_id": MASK,
        **more,
    }


def write_peagle(directory: Path, sizes: HeadSizes, layers: int = 2, seed: int = 0, **more: Any) -> Path:
    """A P-EAGLE head beside which vLLM is told to draft in parallel."""
    return write_head(directory, peagle_config(sizes, layers, **more), peagle_tensors(sizes, layers, seed))


def peagle_session(
    directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64, **choices: Any
) -> PEagleSession:
    """The head in a directory, at work beside such a target."""
    return PEagleSession(load_kind(PARALLEL_EAGLE_HEADS, directory, ends, dtype, **choices))
