"""Layer-parallel fuzzy execution (EasySpec, §3.1 and Alg. 2).

Legend: B batch, N tokens, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import Guarantee
from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.base import BlockRunner


class LayerParallelRunner(BlockRunner):
    """Within a group of blocks, every attention sub-layer takes the hidden state that enters the group.

    Attention outputs and MLPs are then applied in the original order: h' = h + Attn_i(h_1), h = h' + MLP_i(h'). Each
    block keeps its own norm gains. A group of one block is the plain computation.
    """

    guarantee: Guarantee = "relaxed"

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self.groups = tuple(tuple(group) for group in groups)

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        for group in self.groups:
            entering_BNM = h_BNM
            attention_outputs = []
            for layer in group:
                q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, entering_BNM, work)
                decoder.write_kv(layer, k_BNGD, v_BNGD, work)
                attention_outputs.append(decoder.project(layer, decoder.attend(layer, q_BNHD, work)))
            for layer, a_BNM in zip(group, attention_outputs, strict=True):
                h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
                work.record(layer + 1, h_BNM)
        return h_BNM


def consecutive_groups(layers: int, size: int) -> list[list[int]]:
    """Groups of ``size`` consecutive layers, the first and the last layer alone, as in EasySpec's Table 6.

    The layers between are cut from layer 1 on; the last of these groups takes what is left. With 30 layers and size 4:
    0, 1-4, 5-8, …, 21-24, 25-28, 29.
    """
    middle = [list(range(i, min(i + size, layers - 1))) for i in range(1, layers - 1, size)]
    last = [[layers - 1]] if layers > 1 else []
    return [[0], *middle, *last]


def check_groups(groups: Sequence[Sequence[int]], layers: int, where: str) -> list[list[int]]:
    """Return the groups as lists; UserError unless they list the layers 0 … layers-1 once each, in order."""
    listed = [layer for group in groups for layer in group]
    for expected, layer in enumerate(listed):
        if layer != expected:
            raise UserError(
                f"{where}: layer {layer} stands where layer {expected} should: list every layer once, in order"
            )
    if len(listed) != layers or not all(groups):
        raise UserError(f"{where}: the groups list {len(listed)} layers, the draft model has {layers}")
    return [list(group) for group in groups]
