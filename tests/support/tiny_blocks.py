"""Tiny random heads that draft a block, in the layouts in which they are published.

Legend: V target vocabulary, W draft vocabulary, M model dim of the head, S model dim of the target, R rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.draft_heads.block_head import BlockExecutor
from spec_sdk.model.draft_heads.loading import BLOCK_HEADS
from spec_sdk.model.target_ends import TargetEnds
from tests.support.tiny_heads import HeadSizes, _Random, layer_tensors, load_kind, speculators_config, write_head

MASK = 3
LEAVING = (0, 3, 6)
"""Indices of the target's blocks whose outputs are read."""


@dataclass(frozen=True)
class BlockSizes(HeadSizes):
    """``block``: rows, the anchor included. ``rank``: of the Markov head; 0: there is none."""

    W: int = 96
    layers: int = 2
    block: int = 5
    rank: int = 0
    markov: str = "vanilla"
    confidence: bool = False

    def body(self, **more: Any) -> dict[str, Any]:
        """config.json of the layers, as transformers writes it of a Qwen 3."""
        full = ["full_attention"] * self.layers
        return self.config(model_type="qwen3", num_hidden_layers=self.layers, layer_types=full, **more)


def block_tensors(sizes: BlockSizes, seed: int = 0, biases: bool = False) -> dict[str, torch.Tensor]:
    """As z-lab and DeepSpec publish them; with embedding and output head where the target cannot lend them."""
    random, M, R = _Random(seed), sizes.M, sizes.rank
    tensors = {
        "fc.weight": random.matrix(M, sizes.taps * sizes.S),
        "hidden_norm.weight": random.gain(M),
        "norm.weight": random.gain(M),
    }
    for i in range(sizes.layers):
        p = f"layers.{i}"
        tensors |= layer_tensors(random, p, sizes, M)
        tensors[f"{p}.input_layernorm.weight"] = random.gain(M)
        tensors |= {f"{p}.self_attn.{part}_norm.weight": random.gain(sizes.head_dim) for part in "qk"}
        if biases:
            rows = {part: len(tensors[f"{p}.self_attn.{part}_proj.weight"]) for part in "qkvo"}
            tensors |= {f"{p}.self_attn.{part}_proj.bias": random.bias(rows[part]) for part in "qkvo"}
    if sizes.W < sizes.V:
        tensors["d2t"] = random.d2t(sizes)
    if sizes.W < sizes.V or sizes.M != sizes.S:
        tensors["lm_head.weight"] = random.matrix(sizes.W, M)
    if sizes.M != sizes.S:
        tensors["embed_tokens.weight"] = random.matrix(sizes.V, M)
    if R:
        tensors["markov_head.markov_w1.weight"] = torch.randn(sizes.V, R, generator=random._rng)
        tensors["markov_head.markov_w2.weight"] = random.matrix(sizes.W, R)
        part, rows_out, columns = {
            "vanilla": ("", 0, 0),
            "gated": ("gate_proj", R, M + R),
            "rnn": ("joint_proj", 3 * R, 2 * R + M),
        }[sizes.markov]
        if part:
            tensors[f"markov_head.{part}.weight"] = random.matrix(rows_out, columns)
            tensors[f"markov_head.{part}.bias"] = random.bias(rows_out)
    if sizes.confidence:
        tensors["confidence_head.proj.weight"] = random.matrix(1, M + R)
        tensors["confidence_head.proj.bias"] = random.bias(1)
    return tensors


def zlab_config(sizes: BlockSizes, leaving: tuple[int, ...] = LEAVING, **more: Any) -> dict[str, Any]:
    """config.json as z-lab writes it now; ``more`` goes to the top, or to ``dflash_config`` where it says so."""
    nested = {"mask_token_id": MASK, "target_layer_ids": list(leaving), **more.pop("dflash_config", {})}
    top = {"architectures": ["DFlashDraftModel"], "block_size": sizes.block, **more}
    reduced = {"draft_vocab_size": sizes.W} if sizes.W < sizes.V else {}
    wider = {"target_hidden_size": sizes.S} if sizes.M != sizes.S else {}
    return {**sizes.body(), **reduced, **wider, **top, "dflash_config": nested}


def deepspec_config(sizes: BlockSizes, leaving: tuple[int, ...] = LEAVING, **more: Any) -> dict[str, Any]:
    """config.json as DeepSpec writes it of a DSpark head."""
    return {
        **sizes.body(),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": sizes.block,
        "mask_token_id": MASK,
        "target_layer_ids": list(leaving),
        "num_anchors": 512,
        "markov_rank": sizes.rank,
        "enable_confidence_head": sizes.confidence,
        **({"markov_head_type": sizes.markov} if sizes.rank else {}),
        **({"confidence_head_with_markov": bool(sizes.rank)} if sizes.confidence else {}),
        **({"draft_vocab_size": sizes.W} if sizes.W < sizes.V else {}),
        **({"target_hidden_size": sizes.S} if sizes.M != sizes.S else {}),
        **more,
    }


def speculators_block_config(
    sizes: BlockSizes, kind: str, leaving: tuple[int, ...] = LEAVING, body: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """config.json of the speculators format: it counts the blocks that states enter."""
    dspark: dict[str, Any] = {
        "markov_rank": sizes.rank,
        "markov_head_type": sizes.markov,
        "enable_confidence_head": sizes.confidence,
        "confidence_head_with_markov": bool(sizes.rank),
    }
    return speculators_config(
        sizes,
        kind,
        sizes.body() if body is None else body,
        block_size=sizes.block,
        draft_vocab_size=sizes.W,
        mask_token_id=MASK,
        aux_hidden_state_layer_ids=[index + 1 for index in leaving],
        **({} if kind == "dflash" else dspark),
        **more,
    )


def write_dflash(
    directory: Path, sizes: BlockSizes, seed: int = 0, leaving: tuple[int, ...] = LEAVING, **more: Any
) -> Path:
    """A DFlash head in z-lab's layout."""
    return write_head(directory, zlab_config(sizes, leaving, **more), block_tensors(sizes, seed))


def write_dspark(
    directory: Path, sizes: BlockSizes, seed: int = 0, leaving: tuple[int, ...] = LEAVING, **more: Any
) -> Path:
    """A DSpark head in DeepSpec's layout."""
    return write_head(directory, deepspec_config(sizes, leaving, **more), block_tensors(sizes, seed))


def load_block(directory: Path, ends: TargetEnds, dtype: torch.dtype = torch.float64, **choices: Any) -> BlockExecutor:
    """The head in a directory, beside such a target."""
    return load_kind(BLOCK_HEADS, directory, ends, dtype, **choices)
