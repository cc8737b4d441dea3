"""Verdicts inside a graph: trees in tables of fixed sizes, which a captured pass reads when it is replayed.

A verdict reads integers that say which tree was drawn and how, random numbers, and rows of logits. Here the first two
lie in one tensor that never moves, padded to sizes that are promised once, and rows of draft distributions are found by
their distance from a place that never moves. So the two launches of a verdict depend on sizes alone, and can be
captured behind the pass that makes the target's logits: the step is one graph, and then one read.

Legend: B requests, N rows of a request, D draws, S draft distributions, R = B*N + S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.ops.draws import DraftDistribution, DrawnTree
from spec_sdk.ops.kept_tokens import NUMBERS
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.uploads import to_device
from spec_sdk_backends.fused_rejection import (
    FIELDS,
    NOWHERE,
    Distributions,
    Table,
    Trees,
    decide,
    first_reads,
    with_numbers,
)


@dataclass(frozen=True)
class TableSizes:
    """What trees of a step may have at most: ``requests`` exactly, of ``rows`` rows each as the pass is padded, with
    ``draws`` and ``distributions`` together, and ``most`` draws at a node. ``vocabulary``: V, of the logits.
    """

    requests: int
    rows: int
    draws: int
    distributions: int
    most: int
    vocabulary: int


@dataclass(frozen=True)
class Filling:
    """Trees as tables hold them: integers, and the rows that these lead to, kept alive."""

    numbers: list[int]
    rows: tuple[torch.Tensor, ...]


class VerdictTables:
    """The place where a graph's verdicts find their trees. :meth:`fill` before a replay, :meth:`decide` to be captured.

    ``shaping``: of all trees, which may differ in their filters' numbers. ``dtype``: of the draft's logits. ``given``:
    whether a distribution may be given as probabilities.
    """

    def __init__(
        self,
        sizes: TableSizes,
        shaping: Shaping,
        device: torch.device,
        dtype: torch.dtype,
        sigmoid: tuple[float, float] | None = None,
        given: bool = False,
    ) -> None:
        self.sizes = sizes
        self._shaping, self._sigmoid = shaping, sigmoid
        self._draft = torch.zeros(1, dtype=dtype, device=device)
        self._given = torch.zeros(1, dtype=torch.float32, device=device) if given else None
        rows = sizes.requests * sizes.rows + sizes.distributions
        uniforms = sizes.draws + sizes.requests + NUMBERS
        self._parts = [rows, FIELDS * sizes.draws, 4 * sizes.requests, uniforms]
        self._packed = torch.full((sum(self._parts),), NOWHERE, dtype=torch.int64, device=device)
        self._kept: tuple[torch.Tensor, ...] = ()

    def fill(self, trees: Sequence[DrawnTree], uniform_BD: Sequence[torch.Tensor]) -> None:
        """Put these trees there, and their random numbers, float64, one for each draw and then one for the next token:
        one upload, and nothing waits for it.

        Raises ValueError, and leaves what is there, for trees that do not fit.
        """
        self.put(self.prepared(trees), uniform_BD, self._shaping)

    def prepared(self, trees: Sequence[DrawnTree]) -> Filling:
        """These trees as :meth:`put` takes them. Raises ValueError for trees that do not fit."""
        sizes = self.sizes
        sources = [source for source, _ in first_reads(trees)]
        if len(trees) != sizes.requests:
            raise ValueError(f"{len(trees)} requests, and not {sizes.requests}")
        draws = max(len(draws) for tree in trees for draws in tree.draws_N)
        for name, count, most in (
            ("rows", max(tree.size for tree in trees), sizes.rows),
            ("draws", sum(tree.first_draw_N1[-1] for tree in trees), sizes.draws),
            ("distributions", len(sources), sizes.distributions),
            ("draws at a node", draws, sizes.most),
        ):
            if count > most:
                raise ValueError(f"{count} {name}, where there is room for {most}")
        drafted = [source.logits_V for source in sources if isinstance(source, DraftDistribution)]
        if any(row.dtype != self._draft.dtype for row in drafted):
            raise ValueError(f"draft logits are not all of {self._draft.dtype}")
        distributions = Distributions(sources, self._draft, self._given)
        if any(row.shape != (sizes.vocabulary,) for row in distributions.rows):
            raise ValueError(f"a draft distribution is not one of the target's {sizes.vocabulary} tokens")
        if self._aligned and not distributions.aligned:
            raise ValueError("a draft distribution does not begin at a multiple of 16 elements")
        first_row_B = range(0, sizes.requests * sizes.rows, sizes.rows)
        offset_R = range(0, sizes.requests * sizes.rows * sizes.vocabulary, sizes.vocabulary)
        sigmoid = self._sigmoid is not None
        table = Table.of(trees, distributions, first_row_B, offset_R, sigmoid, self._shaping.filtered)
        offsets = [NOWHERE] * self._parts[0]
        for tree, first in zip(trees, first_row_B, strict=True):
            offsets[first : first + tree.size] = offset_R[first : first + tree.size]
        for distribution in table.read:
            offsets[len(offset_R) + distribution] = distributions.offsets[distribution]
        return Filling([*offsets, *_padded(table.draws, self._parts[1]), *table.roots], tuple(distributions.rows))

    def put(self, filling: Filling, uniform_BD: Sequence[torch.Tensor], shaping: Shaping) -> None:
        """Put prepared trees there with their random numbers, as :meth:`fill` does, and the numbers of their filters,
        which may be others than those of the tables where these have filters.
        """
        padding = self._parts[3] - NUMBERS - sum(map(len, uniform_BD))
        uniform_U = with_numbers([*uniform_BD, torch.zeros(padding, dtype=torch.float64)], shaping)
        packed = torch.cat((torch.tensor(filling.numbers, dtype=torch.int64), uniform_U.view(torch.int64)))
        self._packed.copy_(to_device(packed, self._packed.device), non_blocking=True)
        self._kept = filling.rows

    def decide(self, logits_BNV: torch.Tensor) -> torch.Tensor:
        """Verdicts [B, 3] int64 on the trees that are there when this runs, as
        :func:`~spec_sdk_backends.fused_rejection.decide` makes them: nodes are numbered by rows, N of each request.

        Two launches, with filters three, that depend on sizes alone. Raises ValueError for logits of other sizes.
        """
        sizes = self.sizes
        if logits_BNV.shape != (sizes.requests, sizes.rows, sizes.vocabulary) or not logits_BNV.is_contiguous():
            raise ValueError(f"logits {tuple(logits_BNV.shape)} are not those that the tables were made for")
        row_offset_R, draw_DF, root_B4, uniform_U = torch.split(self._packed, self._parts)
        trees = Trees(
            logits_BNV,
            self._draft,
            self._given,
            row_offset_R,
            draw_DF,
            root_B4,
            uniform_U.view(torch.float64),
            sizes.requests * sizes.rows,
            sizes.most,
            self._aligned,
            (),
        )
        return decide(trees, self._shaping, self._sigmoid)

    @property
    def _aligned(self) -> bool:
        return self.sizes.vocabulary % 16 == 0


def _padded(values: Sequence[int], size: int) -> list[int]:
    return [*values, *[0] * (size - len(values))]
