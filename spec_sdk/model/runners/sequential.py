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

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        return decoder.run_blocks(h_BNM, work)
