"""How close fuzzy execution comes to the precise one, inside the draft model (EasySpec, Table 5).

Legend: N tokens, M model dim, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.executor import Executor
from spec_sdk.model.runners.layer_parallel import GroupAttention, LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree

STATES = ("h", "q", "k", "v", "attention")
"""Input of the attention sub-layer, queries, keys, values, and its output after the projection."""


class RecordingRunner(LayerParallelRunner):
    """Alg. 2 with every layer's states kept: state → layer → [N, features] of the last pass. Groups of one: precise."""

    def __init__(self, config: LayerParallelConfig, fused: bool = False) -> None:
        super().__init__(config, fused)
        self.states: dict[str, dict[int, torch.Tensor]] = {state: {} for state in STATES}

    def attention_of(self, group: Sequence[int], decoder: Decoder) -> GroupAttention:
        return self._recorded

    def _recorded(
        self, decoder: Decoder, group: Sequence[int], h_BNM: torch.Tensor, work: ForwardPass
    ) -> Sequence[torch.Tensor]:
        outputs = []
        for layer in group:
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            outputs.append(a_BNM)
            for state, value in zip(STATES, (h_BNM, q_BNHD, k_BNGD, v_BNGD, a_BNM), strict=True):
                self.states[state][layer] = value[0].flatten(1).clone()
        return outputs


def similarities(
    executor: Executor, groups: Sequence[Sequence[int]], sequences: Sequence[Sequence[int]], positions: int
) -> dict[str, dict[str, float]]:
    """Mean cosine similarity between a fuzzy and a precise pass over one token on a precise cache, per state.

    That is what drafting's first fuzzy pass does. ``sequences``: token ids; of each, ``positions`` tokens evenly spread
    over its second half are passed. Returns "all_layers" and "within_groups" (without the first layer of each group) →
    state → mean over layers, tokens and sequences. The paper does not say which of the two its Table 5 is.
    """
    session = Session(executor)
    fuzzy = RecordingRunner.of(groups)
    precise = RecordingRunner.of([[layer] for layer in range(executor.layers)])
    found: dict[str, dict[int, list[float]]] = {s: {layer: [] for layer in range(executor.layers)} for s in STATES}
    for tokens in sequences:
        session.open(0, (), keep=False)
        half = len(tokens) // 2
        for at in sorted({half + i * (len(tokens) - half) // positions for i in range(positions)}):
            session.prefill(0, tokens[session.length() : at])
            for session.runner in (fuzzy, precise):
                session.score([0], [TokenTree.root_only(tokens[at])])
            for state in STATES:
                for layer, values in found[state].items():
                    one, other = (runner.states[state][layer][-1].double() for runner in (fuzzy, precise))
                    values.append(float(F.cosine_similarity(one, other, dim=0)))
    chosen = {
        "all_layers": [layer for group in groups for layer in group],
        "within_groups": [layer for group in groups for layer in group[1:]],
    }
    return {
        name: {state: statistics.fmean(v for layer in layers for v in found[state][layer]) for state in STATES}
        for name, layers in chosen.items()
    }
