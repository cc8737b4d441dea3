"""What a block runner is, and the measurements it may take.

Legend: B batch, N tokens, M model dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from spec_sdk.contracts import AttentionVerdict, Guarantee

if TYPE_CHECKING:
    from spec_sdk.model.decoder import Decoder, ForwardPass


@dataclass(frozen=True)
class AttentionReport:
    """Attention-level speculation in one pass, per layer; None where nothing was guessed.

    ``hit``: the prediction was accepted. ``error``: the largest relative error among the pass's rows, ``row_errors``
    that of every live row, in the order of the tree's nodes.
    """

    hit: tuple[bool | None, ...]
    error: tuple[float | None, ...]
    row_errors: tuple[tuple[float, ...] | None, ...]

    @staticmethod
    def of(verdicts: Sequence[AttentionVerdict | None]) -> AttentionReport:
        """The report of a pass, from one verdict per layer. Waits for the device, once."""
        made = [verdict for verdict in verdicts if verdict is not None]
        rows: list[list[float] | None] = [None] * len(verdicts)
        if made:
            table = torch.stack([torch.cat((v.hit.float()[None], v.error_BN.flatten())) for v in made]).tolist()
            read = iter(table)
            rows = [None if verdict is None else next(read) for verdict in verdicts]
        return AttentionReport(
            hit=tuple(None if row is None else bool(row[0]) for row in rows),
            error=tuple(None if row is None else max(row[1:]) for row in rows),
            row_errors=tuple(None if row is None else tuple(row[1:]) for row in rows),
        )


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

    def commit(self, path: Sequence[int]) -> None:  # noqa: B027 - most runners keep nothing
        """These rows of the last pass were kept, the others dropped."""

    def truncate(self, length: int) -> None:  # noqa: B027
        """The cache was rolled back to its first ``length`` tokens."""
