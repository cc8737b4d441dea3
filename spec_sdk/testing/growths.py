"""Does a growth keep its promises?

Legend: K texts or nodes that are fed together, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from spec_sdk.contracts import Budget, Drafter, DraftLogits, Growing, Growth, NoOptions, Request, SamplingParams
from spec_sdk.errors import in_a_line
from spec_sdk.testing.check import Check, run_checks
from spec_sdk.testing.defaults import MakeSampler, reference_sampler, request_for
from spec_sdk.testing.drafters import DRAWS, drafter_checks
from spec_sdk.testing.service import check_proposal
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import TokenTree, TreeBuilder

VOCABULARY, FEW = 12, 3
SPREADS = (0.3, 1.5, 6.0)
"""Of the draft model's logits: unsure, as usual, and nearly certain."""


def check_growth(
    growth: Growth,
    *,
    draws: int = DRAWS,
    budgets: int = 60,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless ``growth`` behaves, in a drafter whose model is a table of random logits.

    All that :func:`~spec_sdk.testing.check_drafter` checks of such a drafter, which serves several requests, level by
    level: well-formed trees within the budget and the vocabulary, a fixed seed gives the same tree, no request touches
    another's, nothing of a request is changed, drawn tokens follow the distribution that they declare (over ``draws``
    seeds), and in a small vocabulary every outcome of a cycle is tried. Then, with so many random ``budgets``, greedy
    and sampled, for logits flat and steep, of all tokens or some: it feeds exactly the nodes that it added, feeds none
    too deep, branches only if it says so, prunes nothing that was drawn, adds no token that cannot be drafted, and
    closes its tree where it is given logits of no rows, which only one that notes probabilities is; and where it says
    that its trees have a fixed shape, it feeds the levels of that shape, and adds the tokens that were drawn for it
    (:attr:`DraftLogits.drawn_KW <spec_sdk.contracts.DraftLogits>`), and where it says how many paths it keeps
    (``kept_paths``), it feeds those, and its tree has the nodes that it says besides (``most_offered``).
    """
    run_checks(growth_checks(growth, draws=draws, budgets=budgets, make_sampler=make_sampler, seed=seed))


def growth_checks(
    growth: Growth,
    *,
    draws: int = DRAWS,
    budgets: int = 60,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> list[Check]:
    """The checks of :func:`check_growth`, one by one."""

    def drafter(vocabulary: int) -> Callable[[], Drafter]:
        return lambda: named(growth, TableModel(vocabulary, seed))

    *of_trees, _ = drafter_checks(drafter(VOCABULARY), VOCABULARY, draws=draws, make_sampler=make_sampler, seed=seed)
    enumerated = drafter_checks(drafter(FEW), FEW, prompts=[[1], [0, 2, 1]], make_sampler=make_sampler, seed=seed)[-1]
    return [
        *of_trees,
        enumerated,
        Check(
            "feeds what it added, no deeper than allowed; prunes nothing that was drawn",
            lambda: _check_budgets(growth, budgets, make_sampler, seed),
        ),
    ]


def _check_budgets(growth: Growth, budgets: int, make_sampler: MakeSampler, seed: int) -> str:
    choose, ended = random.Random(seed), 0
    for trial in range(budgets):
        model = TableModel(VOCABULARY, seed + trial, spread=choose.choice(SPREADS))
        params = SamplingParams(temperature=choose.choice((0.0, 0.7, 1.0)), top_k=choose.choice((0, 0, 3)))
        depth = choose.randint(1, 8)
        budget = Budget(depth, depth + choose.choice((1, 1, 2, 5, 1000)))
        prompt = [choose.randrange(VOCABULARY) for _ in range(choose.randint(1, 9))]
        state = request_for(prompt, make_sampler(params), seed + trial)
        some = choose.sample(range(VOCABULARY), choose.randint(2, VOCABULARY - 1)) if choose.random() < 0.5 else None
        for feeds, drawn in ((depth, False), (trial % depth, False), (depth, True)):
            drafter = _Growing(growth, model, some, feeds, drawn)
            (tree,) = drafter.propose([state.view], [budget])
            ended += drafter.ended
            check_proposal(tree, state, budget, VOCABULARY)
            odd = set(tree.token_N[1:]) - set(range(VOCABULARY) if some is None else some)
            assert not odd, (
                f"growth {growth.name!r}: it adds token {min(odd)}, and only {sorted(some or ())} can be drafted"
            )
    return f"{budgets} budgets; {ended} trees ended by logits of no rows"


def named(growth: Growth, model: TableModel) -> Drafter:
    """A drafter of the growth's name, by which messages call it."""

    class Named(_Growing):
        name = growth.name

    return Named(growth, model)


LogitsOf = Callable[[Sequence[Sequence[int]]], DraftLogits]
"""What follows each of some texts."""


class _Growing(Drafter):
    """Grows the trees of all its requests together, with a table in place of a draft model. ``some``: the tokens that
    can be drafted, if not all. ``feeds``: after so many levels a growth that notes probabilities is given no rows;
    None: it always is given some. ``ended``: trees that ended so. ``drawn``: where a shape is fixed, children are drawn
    for the growth, as a device does that drafts all levels at once.
    """

    name = "growing"

    def __init__(
        self,
        growth: Growth,
        model: TableModel,
        some: Sequence[int] | None = None,
        feeds: int | None = None,
        drawn: bool = False,
    ) -> None:
        models: Any = None
        super().__init__(NoOptions(), models)
        self.growth = growth
        self.branches = growth.branches
        self.feeds, self.ended, self.drawn = feeds, 0, drawn
        self.model = model
        self.some = None if some is None else torch.tensor(some)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        pairs = zip(requests, budgets, strict=True)
        drafts = [_Draft(self.growth, self.logits, *pair, self.feeds, self.drawn) for pair in pairs]
        while asking := [draft for draft in drafts if draft.closed is None]:
            for draft in asking:
                draft.advance()
        self.ended += sum(draft.ended for draft in drafts)
        return [draft.closed for draft in drafts if draft.closed is not None]

    def logits(self, texts: Sequence[Sequence[int]]) -> DraftLogits:
        """What follows each of some texts."""
        logits_KV = torch.stack([self.model.logits(text) for text in texts])
        if self.some is None:
            return DraftLogits.over_all(logits_KV)
        return DraftLogits(logits_KV[:, self.some], self.some, VOCABULARY)


class _Draft:
    """One request's tree while it grows, looked at after every level."""

    def __init__(
        self,
        growth: Growth,
        logits: LogitsOf,
        request: Request,
        budget: Budget,
        feeds: int | None = None,
        drawn: bool = False,
    ) -> None:
        self.ended = False
        self._feeds = feeds
        self.closed: TokenTree | None = None
        self._where = f"growth {growth.name!r}, prefix of {len(request.tokens)} tokens, {budget}"
        self._growth, self._logits_of, self._request, self._depth = growth, logits, request, budget.depth
        self._tree = TreeBuilder(request.pending_token, budget.nodes)
        self._fed = 1
        self._fed_levels: list[int] = []
        self._drawn, self._drawn_tokens = drawn, list[int]()
        root = logits([request.tokens])
        shape = growth.fixed_shape(budget.depth, budget.nodes, request)
        self._kept = growth.kept_paths(request)
        self._joint = {0: 0.0}
        # of all paths that fed nodes offered, how probable they are
        self._offered = dict[tuple[int, ...], float]()
        # of fewer tokens no tree can have it
        self._shape = shape if shape is not None and max(shape.widths) <= root.logits_KR.shape[-1] else None
        self._root = self._with_draws(root)
        self._growing: Growing = growth.growing(self._tree, self._root, budget.depth, request, "growing")
        self._logits: DraftLogits | None = None

    def advance(self) -> None:
        """Go on by a level."""
        tree = self._tree
        try:
            count = next(self._growing) if self._logits is None else self._growing.send(self._logits)
        except StopIteration as done:
            assert isinstance(done.value, TokenTree), f"{self._where}: it returned {done.value!r}, which is no tree"
            self._check_closed(done.value)
            self._check_draws()
            self._check_shape(done.value)
            if self._kept is not None:
                last = self._offers(self._root if self._logits is None else self._logits)
                self._check_most_offered(done.value, last)
            self.closed = done.value
            return
        except ValueError as error:
            raise AssertionError(f"{self._where}: {error}") from error
        assert count, f"{self._where}: it asks for logits without a new node to feed"
        self._check_draws()
        deepest = max(tree.depth)
        assert deepest <= self._depth, f"{self._where}: it feeds a node of depth {deepest}"
        if self._kept is not None:
            self._check_kept(count, self._root if self._logits is None else self._logits)
        if self._feeds is not None and len(self._fed_levels) >= self._feeds and self._notes_probabilities():
            self._end()
            return
        paths = [_path(tree, node) for node in range(self._fed, tree.size)]
        self._fed = tree.size
        self._fed_levels.append(count)
        self._logits = self._with_draws(self._logits_of([[*self._request.tokens, *path] for path in paths]))

    def _with_draws(self, logits: DraftLogits) -> DraftLogits:
        """With the children that the shape says, drawn already; as they are where a node has fewer."""
        self._drawn_tokens, level = [], len(self._fed_levels)
        shape, sampler = self._shape, self._request.sampler
        if not self._drawn or shape is None or shape.draw_temperature is None or level >= len(shape.widths):
            return logits
        # a device draws in the order of tokens, which some of them may have otherwise
        if logits.token_R is not None:
            return logits
        rows = [sampler.distribution(row_V / shape.draw_temperature) for row_V in logits.full_KV]
        drawn_KW = tuple(tuple(sampler.draw_different(row, shape.widths[level], self._request.rng)) for row in rows)
        if min(map(len, drawn_KW)) < shape.widths[level]:
            return logits
        self._drawn_tokens = [token for tokens in drawn_KW for token in tokens]
        return replace(logits, drawn_KW=drawn_KW)

    def _check_draws(self) -> None:
        added = self._tree.token[self._fed :]
        assert not self._drawn_tokens or added == self._drawn_tokens, (
            f"{self._where}: it was given drawn_KW, tokens {self._drawn_tokens}, and added {added}"
        )

    def _notes_probabilities(self) -> bool:
        return all(draw.probability is not None for draws in self._tree.draws for draw in draws)

    def _end(self) -> None:
        """There are no rows for the level that is to be fed."""
        where, added = f"{self._where}: given logits of no rows (K = 0)", self._tree.size
        try:
            self._growing.send(DraftLogits.over_all(torch.empty(0, VOCABULARY)))
        except StopIteration as done:
            assert isinstance(done.value, TokenTree), f"{where}, it returned {done.value!r}, which is no tree"
            assert self._tree.size == added, f"{where}, it added {self._tree.size - added} nodes"
            self._check_closed(done.value)
            if self._kept is not None:
                self._check_most_offered(done.value)
            self.closed, self.ended = done.value, True
        except Exception as error:
            raise AssertionError(f"{where}, it raised {in_a_line(error)}") from error
        else:
            raise AssertionError(f"{where}, it asks for more, where it is to close its tree")

    def _check_kept(self, count: int, logits: DraftLogits) -> None:
        """The level that is to be fed is that of the most probable paths, by the logits of the level above it."""
        tree, kept, joint_of = self._tree, self._kept, self._offers(logits)
        assert kept is not None
        chosen = self._picked(joint_of)
        best = [path for path in joint_of if path in chosen]
        added = list(zip(tree.parent[-count:], tree.token[-count:], strict=True))
        assert added == best, (
            f"{self._where}: it feeds (parent, token) {added}, and {best} are the {kept} most probable paths that "
            "kept_paths says it feeds, in their order"
        )
        for node, path in enumerate(added, self._fed):
            self._joint[node] = joint_of[path]

    def _offers(self, logits: DraftLogits) -> dict[tuple[int, int], float]:
        """The children that the level that was fed last offers by these logits, and how probable the paths to them are:
        (parent, token) → joint log-probability.
        """
        tree, kept = self._tree, self._kept
        assert kept is not None
        level = tree.depth[self._fed - 1]
        above = [node for node in range(self._fed) if tree.depth[node] == level][-len(logits) :]
        offered = [
            (self._joint[node] + logprob, node, token)
            for node, *top in zip(above, *(part.tolist() for part in logits.top(kept)), strict=True)
            for logprob, token in zip(*top, strict=True)
        ]
        found = {(node, token): joint for joint, node, token in offered if joint > -math.inf}
        self._offered |= {(*_path(tree, node), token): joint for (node, token), joint in found.items()}
        return found

    def _picked(self, joint_of: Mapping[tuple[int, int], float]) -> list[tuple[int, int]]:
        """The most probable of a level's offers, as many as are kept and have room."""
        level = self._tree.depth[self._fed - 1]
        share = (self._tree.max_nodes - self._fed) // (self._depth - level)
        return sorted(joint_of, key=joint_of.__getitem__, reverse=True)[: min(self._kept or 0, share)]

    def _check_most_offered(self, closed: TokenTree, last: Mapping[tuple[int, int], float] | None = None) -> None:
        """The closed tree has the nodes that ``most_offered`` says. ``last``: what the last logits offered; None: those
        that it asked for last were not given to it.
        """
        tree, most = self._tree, self._growth.most_offered(self._request)
        if most is None:
            return
        if most:
            best = sorted(self._offered, key=self._offered.__getitem__, reverse=True)
            expected = {*best[: min(most, tree.max_nodes - 1)]}
        else:
            expected = {_path(tree, node) for node in range(1, tree.size if last is None else self._fed)}
            expected |= {(*_path(tree, node), token) for node, token in self._picked(last or {})}
        found = {tuple(closed.token_N[i] for i in closed.path_to(node)[1:]) for node in range(1, closed.size)}
        assert found == expected, (
            f"{self._where}: its tree has the paths {sorted(found)}, and by most_offered={most} it keeps "
            f"{sorted(expected)}"
        )

    def _check_shape(self, closed: TokenTree) -> None:
        if self._shape is None:
            return
        widths = self._shape.widths
        levels = [*self._shape.nodes[:-1]]
        if self._shape.drawn:
            for node, draws in enumerate(closed.draws_N):
                self._check_drawn(closed.depth_N[node], [draw.q_V for draw in draws], widths)
            levels = [count for depth, count in sorted(Counter(closed.depth_N).items()) if 0 < depth < len(widths)]
        assert self._fed_levels == levels, (
            f"{self._where}: it fed {self._fed_levels} nodes level by level, and {levels} by its fixed shape"
        )

    def _check_drawn(self, level: int, drawn: Sequence[torch.Tensor | None], widths: Sequence[int]) -> None:
        """A node of ``level`` has as many children as the shape says, or as it has tokens."""
        expected = widths[level] if level < len(widths) else 0
        if drawn and drawn[0] is not None:
            expected = min(expected, int((drawn[0] > 0).sum()))
        assert len(drawn) == expected, (
            f"{self._where}: a node of level {level} has {len(drawn)} children, and {expected} by its fixed shape"
        )

    def _check_closed(self, closed: TokenTree) -> None:
        drawn = Counter(
            (_path(self._tree, node), self._tree.token[draw.node])
            for node, draws in enumerate(self._tree.draws)
            for draw in draws
            if draw.q_V is not None
        )
        kept = Counter(
            (tuple(closed.token_N[i] for i in closed.path_to(node)[1:]), closed.token_N[draw.node])
            for node, draws in enumerate(closed.draws_N)
            for draw in draws
            if draw.q_V is not None
        )
        pruned = drawn - kept
        assert not pruned, f"{self._where}: {pruned.total()} drawn tokens were pruned, and only chosen ones may be"
        if not self._growth.branches:
            assert closed.size == closed.depth + 1, f"{self._where}: its tree branches, and it says that none does"


def _path(tree: TreeBuilder, node: int) -> tuple[int, ...]:
    """The tokens below the root that lead to ``node``, its own the last."""
    tokens: tuple[int, ...] = ()
    while node:
        tokens = (tree.token[node], *tokens)
        node = tree.parent[node]
    return tokens
