"""What a captured pass measured of attention-level speculation: it stays on the device until somebody looks at it.

Legend: B requests, N rows of a request, K layers that were predicted, X = 2 + N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

import torch

from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.ops.host_reads import read
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.types import AttentionVerdict, Space


@dataclass(frozen=True, eq=False)
class UnreadReports(Sequence[AttentionReport]):
    """One report for each request of a pass, read together when the first of them is looked at.

    ``table_BKX`` float32: per request and predicted layer 1 for a hit or 0, the largest ‖Â − A‖, and the relative error
    of every row, padding included. ``predicted``: the numbers of these K layers, of ``layers`` that there are.
    ``guesses``: whether anything is guessed behind a prefix of so many tokens; where not, a report has no verdict.
    ``request_B``: prefix and live rows of each request; none until :meth:`of` a pass.
    """

    table_BKX: torch.Tensor
    predicted: tuple[int, ...]
    layers: int
    space: Space
    guesses: Callable[[int], bool]
    request_B: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def row(verdict: AttentionVerdict, difference_sq_BN: torch.Tensor) -> torch.Tensor:
        """One layer's part of the table, float32 [B, 2 + N]; padding has a difference of 0."""
        worst_B1 = difference_sq_BN.amax(1, keepdim=True).sqrt()
        return torch.cat((verdict.hit_B[:, None].float(), worst_B1, verdict.error_BN), 1)

    def of(self, inputs: PassInputs) -> UnreadReports:
        """The reports of the pass that had these inputs, whose lengths the host knows."""
        return replace(self, request_B=tuple((part.mask.prefix, part.live) for part in inputs.parts))

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> UnreadReports:
        """The same of another table."""
        return replace(self, table_BKX=change(self.table_BKX))

    @overload
    def __getitem__(self, place: int) -> AttentionReport: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[AttentionReport]: ...
    def __getitem__(self, place: int | slice) -> AttentionReport | Sequence[AttentionReport]:
        if isinstance(place, slice):
            return _Part(self, range(len(self))[place])
        return self._reports[place]

    def __len__(self) -> int:
        return len(self.request_B)

    @cached_property
    def _reports(self) -> list[AttentionReport]:
        guessed = [self.guesses(prefix) for prefix, _ in self.request_B]
        rows_B: list[list[list[float]]] = [[] for _ in guessed]
        if self.predicted and any(guessed):
            rows_B = read(self.table_BKX)[0].tolist()
        return [
            self._report(rows if guesses else [], live)
            for rows, guesses, (_, live) in zip(rows_B, guessed, self.request_B, strict=True)
        ]

    def _report(self, rows: Sequence[Sequence[float]], live: int) -> AttentionReport:
        of_layer = dict(zip(self.predicted, rows, strict=False))
        found = [of_layer.get(layer) for layer in range(self.layers)]
        return AttentionReport(
            hit=tuple(None if row is None else bool(row[0]) for row in found),
            error=tuple(None if row is None else max(row[2 : 2 + live]) for row in found),
            row_error=tuple(None if row is None else tuple(row[2 : 2 + live]) for row in found),
            difference=tuple(None if row is None else row[1] for row in found),
            state_norm=(),
            space=self.space,
        )


class _Part(Sequence[AttentionReport]):
    """Some of the reports, as unread as the others."""

    def __init__(self, whole: UnreadReports, index: range) -> None:
        self._whole, self._index = whole, index

    @overload
    def __getitem__(self, place: int) -> AttentionReport: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[AttentionReport]: ...
    def __getitem__(self, place: int | slice) -> AttentionReport | Sequence[AttentionReport]:
        if isinstance(place, slice):
            return _Part(self._whole, self._index[place])
        return self._whole[self._index[place]]

    def __len__(self) -> int:
        return len(self._index)
