"""The plain forward pass: block after block.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.decoder import Decoder, ForwardPass


class SequentialRunner(BlockRunner):
    """Runs every block on the output of the one before. Stateless."""

    name = "sequential"
    capturable = True

    def run(
        self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass, first: int = 0, end: int | None = None
    ) -> torch.Tensor:
        """Blocks ``first`` … ``end - 1``, by default all: hidden states [B, N, M] in and out."""
        end = decoder.layers if end is None else end
        at_once = decoder.blocks_at_once(h_BNM, work, first, end)
        if at_once is not None:
            return at_once
        for layer in range(first, end):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            work.record(layer + 1, h_BNM)
        return h_BNM
