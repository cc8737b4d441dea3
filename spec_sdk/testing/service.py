"""A drafter at work for an engine that looks at everything it does.

Legend: M model dim, N tree nodes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields

import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, RequestError, RequestState
from spec_sdk.counted import counted
from spec_sdk.engine.forced_tokens import behind, path_behind
from spec_sdk.engine.target import Target
from spec_sdk.errors import cause_of
from spec_sdk.ops import Ops, TopTokens, read_tops
from spec_sdk.testing.trees import check_tree
from spec_sdk.tree import TokenTree

CYCLES = 4
MOST_FORCED = 3


class Service:
    """Serves requests with a drafter, and accepts some path of each of its trees. Hidden states and most probable
    tokens are the ``target``'s, which commits what was accepted.

    With ``forces`` some tokens follow most of the paths as if a constraint forced them. Raises ValueError for a drafter
    that wants hidden states or most probable tokens of no target.
    """

    def __init__(self, drafter: Drafter, vocabulary: int, target: Target | None, forces: bool = False) -> None:
        for wanted, what in ((drafter.taps, "hidden states"), (drafter.target_top_k, "most probable tokens")):
            if wanted and target is None:
                raise ValueError(f"drafter {drafter.name!r} wants the target's {what}: give check_drafter a target")
        self.drafter = drafter
        self._vocabulary = vocabulary
        self._target = target
        self._forces = forces
        # by slot: what the target has made no K and V of, before the pending token
        self._above: dict[int, list[int]] = {}
        self._accept: dict[int, random.Random] = {}
        self._served: dict[int, RequestState] = {}

    def serve(
        self, states: Sequence[RequestState], budget: Budget, apart: int = 0, cycles: int = CYCLES
    ) -> list[list[TokenTree]]:
        """The trees of a few cycles of each request; they join so many cycles ``apart``, and leave when done."""
        trees: list[list[TokenTree]] = [[] for _ in states]
        first = [apart * i for i in range(len(states))]
        for cycle in range(cycles + first[-1]):
            self.start([state for state, begin in zip(states, first, strict=True) if begin == cycle])
            here = [i for i, begin in enumerate(first) if begin <= cycle < begin + cycles]
            for i, tree in zip(here, self.cycle([states[i] for i in here], budget), strict=True):
                trees[i].append(tree)
            self.finish([states[i] for i in here if cycle == first[i] + cycles - 1])
        return trees

    def start(self, states: Sequence[RequestState]) -> None:
        """The target's prefill, and the drafter's."""
        if not states:
            return
        hidden: list[Hidden] = []
        for state in states:
            # what is accepted must be the same alone and in company
            self._accept[state.slot] = random.Random(f"{state.tokens}")
            self._above[state.slot] = []
            self._served[state.slot] = state
            if self._target is not None:
                state.target, prompt = self._target, state.tokens[:-1]
                kept = self._target.open(state.slot, prompt, not self.drafter.taps)
                hidden.append(self._target.prefill(state.slot, prompt[kept:], self.drafter.taps))
        with self._unchanged("start"):
            self.drafter.start([state.view for state in states], hidden if self.drafter.taps else None)

    def propose(self, states: Sequence[RequestState], budget: Budget) -> list[TokenTree]:
        """A tree for each, looked at."""
        if not states:
            return []
        try:
            with self._unchanged("propose"):
                trees = self.drafter.propose([state.view for state in states], [budget] * len(states))
        except RequestError as error:
            raise cause_of(error) from None
        assert len(trees) == len(states), (
            f"propose returned {counted(len(trees), 'tree')} for {counted(len(states), 'request')}"
        )
        for state, tree in zip(states, trees, strict=True):
            check_proposal(tree, state, budget, self._vocabulary)
            self._check_branches(tree)
        return trees

    def _check_branches(self, tree: TokenTree) -> None:
        branching = next((node for node, draws in enumerate(tree.draws_N) if len(draws) > 1), None)
        assert self.drafter.branches or branching is None, (
            f"drafter {self.drafter.name!r}: its tree branches at node {branching}, and it says that none does "
            "(branches = True)"
        )

    def cycle(self, states: Sequence[RequestState], budget: Budget) -> list[TokenTree]:
        """One cycle, in which some path of every tree is accepted and some other token follows it.

        Behind forced tokens a drafter that needs their hidden states, or K and V, waits for a plain step.
        """
        waits = bool(self.drafter.taps) or not self.drafter.drafts_ahead
        asked = [state for state in states if not (waits and self._above[state.slot])]
        proposed = {state.slot: tree for state, tree in zip(asked, self.propose(asked, budget), strict=True)}
        trees = [proposed.get(state.slot) or TokenTree.root_only(state.view.pending_token) for state in states]
        self.accept(states, trees)
        self._force(states)
        return trees

    def accept(self, states: Sequence[RequestState], trees: Sequence[TokenTree]) -> None:
        """Accept some path of every tree."""
        accept = [self._accept[state.slot] for state in states]
        paths = [tree.path_to(choose.randrange(tree.size)) for tree, choose in zip(trees, accept, strict=True)]
        hidden: list[Hidden] = [{} for _ in states]
        tops: list[TopTokens] = []
        if self._target is not None:
            slots = [state.slot for state in states]
            above = [self._above[slot] for slot in slots]
            scored_trees = [behind(lead, tree) for lead, tree in zip(above, trees, strict=True)]
            rows = [path_behind(lead, path) for lead, path in zip(above, paths, strict=True)]
            scores = self._target.score(slots, scored_trees, self.drafter.taps)
            hidden = [
                {layer: h_NM[of] for layer, h_NM in scored.hidden.items()}
                for scored, of in zip(scores, rows, strict=True)
            ]
            if count := self.drafter.target_top_k:
                tops = read_tops(
                    [
                        Ops().top_log_probabilities(scored.logits_NV[len(lead) :], count)
                        for scored, lead in zip(scores, above, strict=True)
                    ]
                )
            self._target.commit(slots, rows)
        committed = []
        for state, tree, path, choose in zip(states, trees, paths, accept, strict=True):
            committed.append([*(tree.token_N[node] for node in path[1:]), choose.randrange(self._vocabulary)])
            state.tokens.extend(committed[-1])
            state.step += 1
        if tops:
            with self._unchanged("observe_scores"):
                self.drafter.observe_scores([state.view for state in states], trees, tops)
        with self._unchanged("observe"):
            self.drafter.observe([state.view for state in states], committed, hidden)
        for state in states:
            self._above[state.slot] = []

    def _force(self, states: Sequence[RequestState]) -> None:
        """Let texts go on with tokens that nobody drafted."""
        for state in states if self._forces else ():
            choose = self._accept[state.slot]
            run = [choose.randrange(self._vocabulary) for _ in range(choose.randrange(MOST_FORCED + 1))]
            if run:
                self._above[state.slot] = [state.tokens[-1], *run[:-1]]
                state.tokens.extend(run)
                with self._unchanged("observe_forced"):
                    self.drafter.observe_forced([state.view], [run])

    def finish(self, states: Sequence[RequestState]) -> None:
        """These requests have ended."""
        if states:
            with self._unchanged("finish"):
                self.drafter.finish([state.view for state in states])
            for state in states:
                self._served.pop(state.slot, None)

    @contextlib.contextmanager
    def _unchanged(self, call: str) -> Iterator[None]:
        """Whatever a drafter reaches of the requests that are served must stay as it is; of its random numbers the
        next may be taken.
        """
        served = list(self._served.values())
        before = [contents(state) for state in served]
        yield
        for state, old in zip(served, before, strict=True):
            changed = [name for name, value in contents(state).items() if value != old[name]]
            assert not changed, f"drafter {self.drafter.name!r}: its {call} changed the request's {', '.join(changed)}"


def contents(state: RequestState) -> dict[str, object]:
    """All that a plugin reaches of a request, by name, to be compared with what it was before."""
    values: dict[str, object] = {
        field.name: getattr(state, field.name)
        for field in fields(state)
        if field.name not in ("rng", "view", "ops", "constraint_s", "unfollowed")
    }
    sampler, view = state.sampler, state.view
    return values | {
        "tokens": (id(state.tokens), list(state.tokens)),
        "sampling parameters": repr(sampler.params),
        "sampler's options": repr(sampler.config),
        "sampler's methods": sorted(name for name, value in vars(sampler).items() if callable(value)),
        "operations": (type(state.ops), id(state.ops)),
        "rng": (id(state.rng), state.rng.initial_seed()),
        "view": (id(view), id(view._state), id(view.tokens), id(getattr(view.tokens, "_tokens", None))),
        "constraint's fields": _fields(state.constraint),
        "encoder input's fields": _fields(state.encoder_input),
    }


def _fields(of: object) -> dict[str, object]:
    """What an object holds; tensors by what they are, and how often they were written to."""
    held = vars(of) if hasattr(of, "__dict__") else {}
    return {
        name: (id(value), value._version) if isinstance(value, torch.Tensor) else repr(value)
        for name, value in held.items()
        # what a constraint works out once and keeps is its own
        if not name.startswith("_known")
    }


def check_proposal(tree: TokenTree, state: RequestState, budget: Budget, vocabulary: int) -> None:
    """Raise AssertionError unless ``tree`` is well-formed, of the request and within ``budget`` and ``vocabulary``."""
    where, pending = f"prefix of {len(state.tokens)} tokens, cycle {state.step}", state.view.pending_token
    assert isinstance(tree, TokenTree), f"{where}: propose returned {tree!r}, which is no tree"
    try:
        check_tree(tree)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    assert tree.token_N[0] == pending, (
        f"{where}: the tree begins with token {tree.token_N[0]}, the pending token is {pending}"
    )
    assert tree.depth <= budget.depth, f"{where}: the tree has depth {tree.depth}, the budget is {budget.depth}"
    assert tree.size <= budget.nodes, f"{where}: the tree has {tree.size} nodes, the budget is {budget.nodes}"
    largest = max(tree.token_N)
    assert largest < vocabulary, f"{where}: token {largest} lies outside the vocabulary of {vocabulary}"
