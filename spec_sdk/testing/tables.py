"""Language models that are tables: small enough that every distribution can be written down, and free of any network.

Legend: N tree nodes, R table rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from spec_sdk.common_prefix import common_prefix
from spec_sdk.contracts import Budget, Drafter, DraftLogits, NoOptions, Request
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.session import EpilogueOf, Scores
from spec_sdk.ops import without
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.tree import DrawKind, TokenTree, TreeBuilder

ROWS = 4099


class PlannedDraw(NamedTuple):
    """A draw to be made: its kind, and the number of the table whose distribution it comes from."""

    kind: DrawKind
    table: int = 0


DrawPlan = Sequence[Sequence[PlannedDraw]]
"""What to draw at every node of depth 0, 1 …, in draw order."""


def in_words(plan: DrawPlan) -> str:
    """``chosen and with replacement, then chosen``."""
    return ", then ".join(" and ".join(draw.kind.replace("_", " ") for draw in draws) for draws in plan)


class TableModel:
    """A model whose logits depend on the whole prefix, which is hashed into a table of random rows.

    It serves as the scheduler's target, for any number of requests at once, each of which has a slot. ``spread`` is the
    standard deviation of the logits. It has no encoder. Its only hidden state, at any layer, is the row of logits.
    """

    one_launch = False
    scores_closed = False

    def __init__(self, vocabulary: int, seed: int, *, spread: float = 1.5, context: int = 4096) -> None:
        self.vocabulary = vocabulary
        self.context = context
        self.deepest_tree: int | None = None
        self.encoder = None
        self.table_RV = spread * torch.randn((ROWS, vocabulary), generator=torch.Generator().manual_seed(seed))
        self._tokens: dict[int, list[int]] = {}
        self._trees: dict[int, TokenTree] = {}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [V] for the token after ``tokens``."""
        return self.table_RV[_row(tokens)]

    def length(self, slot: int = 0) -> int:
        """Committed tokens of a slot."""
        return len(self._tokens.get(slot, ()))

    def shared(self, slot: int, tokens: Sequence[int], encoder_input: EncoderInput | None = None) -> int:
        """How many of the first of ``tokens`` are committed in the slot."""
        return common_prefix(self._tokens.get(slot, ()), tokens)

    def open(
        self, slot: int, tokens: Sequence[int], keep: bool = True, encoder_input: EncoderInput | None = None
    ) -> int:
        """Give ``slot`` to a new request; return how many of the first of its ``tokens`` stay committed."""
        kept = self.shared(slot, tokens) if keep else 0
        self._tokens[slot] = list(tokens[:kept])
        self._trees.pop(slot, None)
        return kept

    def reserve(self, slots: int, tokens: int) -> None:
        """A table needs no memory."""

    def prefill(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        """Commit ``tokens``; return layer → [len(tokens), V]."""
        if taps:
            return self.prefill_scored(slot, tokens, taps).hidden
        self._tokens.setdefault(slot, []).extend(tokens)
        return {}

    def prefill_scored(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Scores:
        """Commit ``tokens``; return the logits after each of them."""
        committed = self._tokens.setdefault(slot, [])
        row, rows = _row(committed), list[int]()
        committed.extend(tokens)
        for token in tokens:
            row = _row([token], after=row)
            rows.append(row)
        return Scores(self.table_RV[rows], {layer: self.table_RV[rows] for layer in taps})

    def score(
        self,
        slots: Sequence[int],
        trees: Sequence[TokenTree],
        taps: Sequence[int] = (),
        epilogue: EpilogueOf | None = None,
    ) -> list[Scores]:
        """Logits after every node, each computed from the node's own path."""
        scores = []
        for slot, tree in zip(slots, trees, strict=True):
            self._trees[slot] = tree
            row_N = [_row([tree.token_N[0]], after=_row(self._tokens.get(slot, ())))]
            for node in range(1, tree.size):
                row_N.append(_row([tree.token_N[node]], after=row_N[tree.parent_N[node]]))
            logits_NV = self.table_RV[row_N]
            # copies: the scheduler writes the repetition penalty into the logits
            scores.append(Scores(logits_NV, {layer: logits_NV.clone() for layer in taps}))
        return scores

    def score_ahead(
        self, slots: Sequence[int], token_B: torch.Tensor, taps: Sequence[int], epilogue: EpilogueOf
    ) -> None:
        """Nothing: passes that are no launch have no verdict that another one could begin with."""

    def score_closed(
        self, slots: Sequence[int], roots: Sequence[int], closed: ClosedTrees, taps: Sequence[int]
    ) -> list[Scores]:
        raise NotImplementedError("a pass that is no launch is not made before its trees are read")

    def take_ahead(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> bool:
        return False

    def commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keep these nodes of each slot's last tree. Raises ValueError unless they are a path from its root."""
        for slot, path in zip(slots, paths, strict=True):
            tree, parents = self._trees[slot], [-1, *path[:-1]]
            if any(tree.parent_N[node] != parent for node, parent in zip(path, parents, strict=True)):
                raise ValueError(f"slot {slot}: the committed nodes {list(path)} are not a path from the root")
            self._tokens.setdefault(slot, []).extend(tree.token_N[node] for node in path)


def _row(tokens: Sequence[int], after: int = 1) -> int:
    """The table row of a prefix: that of the tokens before (``after``), stirred with each further token."""
    row = after
    for token in tokens:
        row = (row * 1103 + 31 * token + 17) % ROWS
    return row


class TableDrafter(Drafter):
    """Draws whatever tree ``plan`` describes from the distributions of table models, sampled as the request's sampler
    says.

    A ``chosen`` draw takes the most probable token that was not chosen at the node before. Draws without replacement
    from one table are one sequence, which ends early when the table's distribution has no further token.
    """

    name = "table"
    branches = True

    def __init__(self, tables: Sequence[TableModel], plan: DrawPlan) -> None:
        self.config = NoOptions()
        self.tables = tables
        self.plan = plan

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        """To the depth of the plan or the budget, whichever is less; ends early when its nodes are used up."""
        tree = TreeBuilder(request.pending_token, budget.nodes)
        prefixes = [list(request.tokens)]
        level = [0]
        for draws in self.plan[: budget.depth]:
            first_new = tree.size
            for node in level:
                self._draw_children(tree, node, prefixes[node], draws, request)
            level = list(range(first_new, tree.size))
            prefixes += [[*prefixes[tree.parent[node]], tree.token[node]] for node in level]
        return tree.build().tree

    def _draw_children(
        self,
        tree: TreeBuilder,
        node: int,
        prefix: list[int],
        draws: Sequence[PlannedDraw],
        request: Request,
    ) -> None:
        sampler, rng = request.sampler, request.rng
        sources = {}
        for _, table in draws:
            logits = DraftLogits.over_all(self.tables[table].logits(prefix)[None].clone())
            processed_1V = request.process_draft(logits, [prefix[len(request.tokens) :]]).full_KV
            sources[table] = sampler.distribution(processed_1V[0])
        distributions = {table: distribution.q_V for table, distribution in sources.items()}
        undrawn, sequences = dict(distributions), {table for kind, table in draws if kind == "without_replacement"}
        left = {table: int((distributions[table] > 0).sum()) for table in sequences}
        chosen: set[int] = set()
        for kind, table in draws:
            if not tree.room:
                return
            q_V = distributions[table]
            if kind == "chosen":
                token = next(t for t in q_V.argsort(descending=True, stable=True).tolist() if t not in chosen)
                chosen.add(token)
                tree.add(node, token, kind, drafter=self.name)
            elif kind == "with_replacement":
                tree.add(node, sampler.draw_from(sources[table], rng), kind, sources[table], self.name)
            elif left[table]:
                token = sampler.draw(undrawn[table], rng)
                tree.add(node, token, kind, sources[table], self.name, sequence=table)
                undrawn[table], left[table] = without(undrawn[table], token), left[table] - 1
