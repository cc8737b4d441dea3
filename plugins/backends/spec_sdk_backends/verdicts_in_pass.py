"""The rule ``multi_step`` as the last operation of a captured pass: which tables a pass over drawn trees reads.

A graph keeps the memory that it was captured with, so tables are kept by the sizes that a graph depends on, and few
sizes come: each is rounded up to a power of two.

Legend: B requests of a pass, N rows of a request.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from spec_sdk.model.powers_of_two import power_of_two
from spec_sdk.ops import Decision, DecisionsInPass, LogitsToCome, Recipe, UnscoredTree
from spec_sdk.ops.draws import DraftDistribution
from spec_sdk.ops.kept_tokens import numbers_of
from spec_sdk_backends.fused_multi_step import Numbering, uniforms_of
from spec_sdk_backends.fused_rejection import first_reads
from spec_sdk_backends.verdict_tables import TableSizes, VerdictTables

MOST_TABLES = 64
"""As many as an executor keeps graphs."""
MOST_SAMPLINGS = 4
"""Graphs are captured for a temperature, with filters or without. Requests of further ones have their verdicts after
the pass, so that a server whose clients send many does not capture in the middle of each."""


class TablesInUse:
    """The tables of an executor's or several executors' captured passes."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, VerdictTables] = {}
        self._samplings: list[Hashable] = []

    def multi_step(self, unscored: Sequence[UnscoredTree], logits: LogitsToCome) -> DecisionsInPass | None:
        """What a pass over these trees makes of its logits, its tables filled; None for requests of several samplings,
        for draft distributions that no table leads to, and for a sampling more than are kept graphs for.
        """
        recipe, sampling = unscored[0].recipe, captured_for(unscored[0].recipe)
        if len({sampling_of(one.recipe) for one in unscored}) > 1:
            return None
        if sampling not in self._samplings and len(self._samplings) == MOST_SAMPLINGS:
            return None
        trees = [one.tree for one in unscored]
        sources = [source for source, _ in first_reads(trees)]
        dtypes = {source.logits_V.dtype for source in sources if isinstance(source, DraftDistribution)}
        given = any(not isinstance(source, DraftDistribution) for source in sources)
        least = logits.requests * logits.rows
        sizes = TableSizes(
            requests=logits.requests,
            rows=logits.rows,
            draws=power_of_two(max(least, sum(tree.first_draw_N1[-1] for tree in trees))),
            distributions=power_of_two(max(least, len(sources))),
            most=power_of_two(max(1, *(len(draws) for tree in trees for draws in tree.draws_N))),
            vocabulary=logits.vocabulary,
        )
        key = sizes, sampling, given, dtypes.pop() if dtypes else logits.dtype, logits.device
        # of several dtypes the tables refuse one
        tables = self._tables.get(key) or VerdictTables(
            sizes, recipe.shaping, logits.device, key[3], recipe.sigmoid, given
        )
        try:
            filling = tables.prepared(trees)
        except ValueError:
            return None
        tables.put(filling, [uniforms_of(one) for one in unscored], recipe.shaping)
        self._keep(key, sampling, tables)
        rows = sizes.requests * sizes.rows
        first_node_B = range(0, rows, sizes.rows)
        numbering = Numbering(trees, first_node_B, rows, rows + sizes.distributions)

        def decision(b: int, verdict_3: torch.Tensor) -> Decision:
            return numbering.decision(b, *verdict_3.tolist())

        return DecisionsInPass(tables.decide, decision)

    def _keep(self, key: Hashable, sampling: Hashable, tables: VerdictTables) -> None:
        self._tables[key] = tables
        if sampling not in self._samplings:
            self._samplings.append(sampling)
        if len(self._tables) > MOST_TABLES:
            del self._tables[next(iter(self._tables))]


def sampling_of(recipe: Recipe) -> Hashable:
    """What the verdicts of one launch have in common."""
    return tuple(numbers_of(recipe.shaping)), recipe.sigmoid


def captured_for(recipe: Recipe) -> Hashable:
    """What a graph's verdicts hang on: the numbers of filters are read when it runs."""
    return recipe.shaping.temperature, recipe.shaping.filtered, recipe.sigmoid
