"""The rules ``multi_step`` and ``naive`` on rows that the native kernels make of logits
(:class:`~spec_sdk.ops.FromLogits`).

The rules are the reference's (:mod:`spec_sdk.ops.acceptance`): they walk through few nodes, and what takes time is the
rows.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops import FromLogits, Left, Rows, ScoredTree
from spec_sdk.ops.draws import DraftDistribution, Draw
from spec_sdk.ops.rows import not_a_number, possible
from spec_sdk_backends.native.mass import Mass, takes
from spec_sdk_backends.native.structures import Shaping


def with_native_rows(scored: ScoredTree) -> ScoredTree:
    """The same tree with rows of the kernels; as it is where they lack something, as the sigmoid."""
    given = scored.rows.from_logits
    if given is None or given.sigmoid is not None or not takes(given.logits_NV[0]):
        return scored
    return ScoredTree(scored.tree, NativeRows(scored.rows, given), scored.uniforms)


class NativeRows(Rows):
    """``rows``, but for what a rule takes from at a node. All of it lies in host memory already."""

    def __init__(self, rows: Rows, given: FromLogits) -> None:
        super().__init__(rows.tree, given.logits_NV, rows.greedy)
        self._rows = rows
        self.shaping = Shaping.of(given.shaping, given.shaping.temperature)

    def unread(self, choices_only: bool) -> list[torch.Tensor]:
        return [self.logits_NV]

    def hold(self, host: Sequence[torch.Tensor], choices_only: bool) -> None:
        (self.logits_NV,) = host

    def target(self, node: int) -> torch.Tensor:
        return self._rows.target(node)

    def draft(self, draw: Draw, node: int) -> torch.Tensor:
        return self._rows.draft(draw, node)

    def choice_N(self) -> torch.Tensor:
        return self._rows.choice_N()

    def known(self, draw: Draw) -> float | None:
        return self._rows.known(draw)

    def left(self, node: int) -> Left:
        return NativeLeft(self, node)


class NativeLeft(Left):
    """What :class:`~spec_sdk.ops.Left` is, on masses."""

    rows: NativeRows

    def __init__(self, rows: NativeRows, node: int) -> None:
        self.rows, self.node = rows, node
        logits_V = rows.logits_NV[node]
        self._vocabulary = logits_V.shape[0]
        self._p, self._spare = self._row("p"), self._row("spare")
        if isnan(self._p.of_logits(logits_V, rows.shaping)):
            raise UnusableLogits(node)
        self._q: Mass | None = None
        self._rest: dict[int, Mass] = {}

    def p(self, token: int) -> float:
        return self._p.probability(token)

    def q(self, draw: Draw) -> float:
        self._q = None
        if draw.source is None:
            return 1.0
        if draw.sequence is not None:
            self._q = self._rest.get(draw.sequence)
        q = self.rows.known(draw) if self._q is None else None
        if q is None:
            q = self._drawn_from(draw).probability(self.rows.tree.token_N[draw.node])
        return possible(q, self.rows.tree, draw)

    def reject(self, draw: Draw, last: bool) -> None:
        token = self.rows.tree.token_N[draw.node]
        if draw.source is None:
            self._p.remove(token)
            return
        q = self._drawn_from(draw)
        beyond = self._spare.beyond(self._p, q)
        if isnan(beyond):
            raise not_a_number(self.rows.tree, draw)
        # nothing is left where p is q up to rounding: then as good as nobody comes here
        if beyond > 0:
            self._p, self._spare = self._spare, self._p
        if not last and draw.sequence is not None:
            q.remove(token)
            self._rest[draw.sequence] = q

    def draw(self, uniform: float) -> int:
        token = self._p.draw(uniform)
        if token < 0:
            raise UnusableLogits(self.node)
        return token

    def _drawn_from(self, draw: Draw) -> Mass:
        """q of the draw that is being tried: made once, for its test and its rejection."""
        if self._q is None:
            self._q, source = self._row("q", draw.sequence), draw.source
            if source is not None and source.shape != (self._vocabulary,):
                raise ValueError(
                    f"tree node {draw.node}: its distribution has shape {list(source.shape)}, the target's logits "
                    f"{[self._vocabulary]}"
                )
            if isinstance(source, DraftDistribution) and source.made is None and takes(source.logits):
                if isnan(self._q.of_logits(source.logits, self.rows.shaping)):
                    raise UnusableLogits(self.node, "draft, ")
            else:
                self._q.of_probabilities(self.rows.draft(draw, self.node).float())
        return self._q

    def _row(self, use: str, sequence: int | None = None) -> Mass:
        return Mass.kept((use, sequence), self._vocabulary)
