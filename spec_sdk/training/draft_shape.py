"""Which layers of the target a draft model begins with, and how much of them.

Legend: L layers, M model dim, I MLP dim, G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig

Tensors = dict[str, torch.Tensor]
"""A layer's weights by role in the table of its architecture."""


@dataclass(frozen=True)
class DraftShape:
    """``layers`` of the target, and of each ``mlp_size`` of its MLP's units and ``kv_heads`` of its KV heads, with the
    query heads that share them. All of them where these are None.
    """

    layers: Sequence[int]
    mlp_size: int | None = None
    kv_heads: int | None = None

    def config(self, target: ModelConfig) -> ModelConfig:
        """The draft model's. Raises UserError for more than the target has, and for what cannot be trained."""
        if target.encoder is not None or target.experts is not None:
            what = "an encoder" if target.encoder is not None else "a mixture of experts"
            raise UserError(f"model.target: task=train_draft trains dense decoders, and this model has {what}")
        if target.uncommon_blocks is not None:
            raise UserError(f"model.target: task=train_draft does not train {target.uncommon_blocks}")
        if target.attention_softcap is not None:
            raise UserError("model.target: task=train_draft does not train layers with soft-capped attention")
        if target.wide_qk_norm and self.kv_heads is not None:
            raise UserError("task.kv_heads: the target's norms are of all heads together; leave it out")
        for option, value, most in (
            ("mlp_size", self.mlp_size, target.intermediate_size),
            ("kv_heads", self.kv_heads, target.num_kv_heads),
        ):
            if value is not None and value > most:
                raise UserError(f"task.{option}: {value} is more than the target's {most}")
        kv_heads = self.kv_heads or target.num_kv_heads
        return replace(
            target.of_layers(self.layers),
            intermediate_size=self.mlp_size or target.intermediate_size,
            num_kv_heads=kv_heads,
            num_heads=target.num_heads // target.num_kv_heads * kv_heads,
            # what it lay beside in the target's files is not in its own
            prefix="",
        )

    def cut(self, tensors: Mapping[str, torch.Tensor], target: ModelConfig) -> Tensors:
        """What is kept of a layer: the units and heads whose weights are largest, in the target's order."""
        kept = dict(tensors)
        if self.mlp_size is not None:
            size_I = tensors["gate"].norm(dim=1) * tensors["up"].norm(dim=1) * tensors["down"].norm(dim=0)
            units = size_I.topk(self.mlp_size).indices.sort().values
            for role in ("gate", "up", "gate_bias", "up_bias"):
                if role in kept:
                    kept[role] = kept[role][units]
            kept["down"] = kept["down"][:, units]
        if self.kv_heads is not None:
            D, G = target.head_dim, target.num_kv_heads
            size_G = tensors["v"].view(G, -1).norm(dim=1) * tensors["o"].T.reshape(G, -1).norm(dim=1)
            heads = size_G.topk(self.kv_heads).indices.sort().values
            for role in ("q", "k", "v", "q_bias", "k_bias", "v_bias"):
                if role in kept:
                    rows = kept[role]
                    kept[role] = rows.view(G, -1, *rows.shape[1:])[heads].flatten(0, 1)
            columns = kept["o"].view(kept["o"].shape[0], G, target.num_heads // G * D)
            kept["o"] = columns[:, heads].flatten(1)
        return {role: tensor.contiguous() for role, tensor in kept.items()}


def chosen_layers(layers: Any, of: int) -> list[int]:
    """The layers that ``task.layers`` names, of a target with ``of``: a list, or so many evenly spread ones.

    The first and the last layer are among these. Raises UserError.
    """
    if isinstance(layers, int) and not isinstance(layers, bool):
        if not 1 <= layers <= of:
            raise UserError(f"task.layers: {layers} must be between 1 and {of}, the target's layers")
        return [0] if layers == 1 else [round(i * (of - 1) / (layers - 1)) for i in range(layers)]
    numbers = isinstance(layers, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in layers)
    if not numbers or not layers or layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < of:
        raise UserError(
            f"task.layers: {layers!r} must be a number of layers, or increasing layers between 0 and {of - 1}"
        )
    return list(layers)
