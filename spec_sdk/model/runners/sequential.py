"""The plain forward pass: block after block.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder, ForwardPass


class SequentialRunner(BlockRunner):
    """Runs every block on the output of the one before. Stateless.

    ``first`` and ``end``: for a runner that is made of others, blocks ``first`` … ``end - 1`` alone.
    """

    name = "sequential"
    capturable = True

    def __init__(self, config: Any = None, first: int = 0, end: int | None = None) -> None:
        super().__init__(config)
        self.first, self.end = first, end

    def runs_all(self, layers: int) -> bool:
        """Whether it runs every block of a model of so many."""
        return self.first == 0 and self.end in (None, layers)

    def attention_groups(self, layers: int) -> tuple[tuple[int, ...], ...] | None:
        return tuple((layer,) for layer in range(layers)) if self.runs_all(layers) else None

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        end = decoder.layers if self.end is None else self.end
        at_once = decoder.blocks_at_once(h_BNM, work, self.first, end)
        if at_once is not None:
            return at_once
        for layer in range(self.first, end):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            work.record(layer + 1, h_BNM)
        return h_BNM


PLAIN = SequentialRunner()
