"""Does a growth keep its promises?

Legend: K nodes that are fed together, V vocabulary.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.contracts import Budget, Drafter, Growing, Growth, NoOptions, Request, SamplingParams
from spec_sdk.testing.defaults import MakeSampler, reference_sampler, request_for
from spec_sdk.testing.drafters import check_drafter, check_proposal
from spec_sdk.testing.tables import TableModel
from spec_sdk.tree import TokenTree, TreeBuilder

VOCABULARY = 12
SPREADS = (0.3, 1.5, 6.0)
"""Of the draft model's logits: unsure, as usual, and nearly certain."""


def check_growth(
    growth: Growth,
    *,
    draws: int = 1000,
    budgets: int = 60,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless ``growth`` behaves, in a drafter whose model is a table of random logits.

    All that :func:`check_drafter` checks of such a drafter, which serves several requests, level by level: well-formed
    trees within the budget and the vocabulary, a fixed seed gives the same tree, no request touches another's, nothing
    of a request is changed, drawn tokens follow the distribution that they declare (over ``draws`` seeds). Then, with
    so many random ``budgets``, greedy and sampled, for logits flat and steep: it feeds exactly the nodes that it added,
    feeds none too deep, branches only if it says so, and prunes nothing that was drawn.
    """
    check_drafter(
        lambda: _Growing(growth, TableModel(VOCABULARY, seed)),
        VOCABULARY,
        draws=draws,
        make_sampler=make_sampler,
        seed=seed,
    )
    choose = random.Random(seed)
    for trial in range(budgets):
        model = TableModel(VOCABULARY, seed + trial, spread=choose.choice(SPREADS))
        params = SamplingParams(temperature=choose.choice((0.0, 0.7, 1.0)), top_k=choose.choice((0, 0, 3)))
        depth = choose.randint(1, 8)
        budget = Budget(depth, depth + choose.choice((1, 1, 2, 5, 1000)))
        prompt = [choose.randrange(VOCABULARY) for _ in range(choose.randint(1, 9))]
        state = request_for(prompt, make_sampler(params), seed + trial)
        (tree,) = _Growing(growth, model).propose([state.view], [budget])
        check_proposal(tree, state, budget, VOCABULARY)


class _Growing(Drafter):
    """Grows the trees of all its requests together, with a table in place of a draft model."""

    name = "growing"

    def __init__(self, growth: Growth, model: TableModel) -> None:
        models: Any = None
        super().__init__(NoOptions(), models)
        self.growth = growth
        self.model = model

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        drafts = [_Draft(self.growth, self.model, *pair) for pair in zip(requests, budgets, strict=True)]
        while asking := [draft for draft in drafts if draft.closed is None]:
            for draft in asking:
                draft.advance()
        return [draft.closed for draft in drafts if draft.closed is not None]


class _Draft:
    """One request's tree while it grows, looked at after every level."""

    def __init__(self, growth: Growth, model: TableModel, request: Request, budget: Budget) -> None:
        self.closed: TokenTree | None = None
        self._where = f"growth {growth.name!r}, prefix of {len(request.tokens)} tokens, {budget}"
        self._growth, self._model, self._request, self._depth = growth, model, request, budget.depth
        self._tree = TreeBuilder(request.pending_token, budget.nodes)
        self._fed = 1
        root_logits_V = model.logits(request.tokens).clone()
        self._growing: Growing = growth.grow(self._tree, root_logits_V, budget.depth, request, "growing")
        self._logits_KV: torch.Tensor | None = None

    def advance(self) -> None:
        """Go on by a level."""
        tree = self._tree
        try:
            count = next(self._growing) if self._logits_KV is None else self._growing.send(self._logits_KV)
        except StopIteration as done:
            assert isinstance(done.value, TokenTree), f"{self._where}: it returned {done.value!r}, which is no tree"
            self._check_closed(done.value)
            self.closed = done.value
            return
        except ValueError as error:
            raise AssertionError(f"{self._where}: {error}") from error
        added = tree.size - self._fed
        assert count == added, f"{self._where}: it feeds {count} nodes, and {added} were added since it last did"
        assert added, f"{self._where}: it asks for logits without a new node to feed"
        deepest = max(tree.depth)
        assert deepest <= self._depth, f"{self._where}: it feeds a node of depth {deepest}"
        paths = [_path(tree, node) for node in range(self._fed, tree.size)]
        self._logits_KV = torch.stack([self._model.logits([*self._request.tokens, *path]) for path in paths])
        self._fed = tree.size

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
