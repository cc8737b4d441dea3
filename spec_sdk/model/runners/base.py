"""What a block runner is, and the measurements it may take.

Legend: B batch, N tokens, M model dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spec_sdk.contracts import Guarantee

if TYPE_CHECKING:
    from spec_sdk.model.decoder import Decoder, ForwardPass


@dataclass(frozen=True)
class AttentionReport:
    """Attention-level speculation in one pass, per layer; None where nothing was guessed.

    ``hit``: the prediction was accepted. ``error``: the largest relative error among the pass's rows.
    """

    hit: tuple[bool | None, ...]
    error: tuple[float | None, ...]


class BlockRunner(ABC):
    """Runs all blocks of a decoder in one pass. It writes K and V, and records the hidden states that were asked for.

    ``guarantee``: how the logits relate to those of the plain forward pass.
    """

    guarantee: Guarantee = "exact"

    @abstractmethod
    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        """Hidden states entering block 0 → hidden states leaving the last block, both [B, N, M]."""

    def report(self) -> AttentionReport | None:
        """Measurements of the last pass, if this runner takes any."""
        return None
