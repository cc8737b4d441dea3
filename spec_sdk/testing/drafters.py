"""Does a drafter keep its promises?

Legend: M model dim, N tree nodes, V vocabulary.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, RequestState, SamplingParams
from spec_sdk.engine.target import Target
from spec_sdk.ops import TopTokens, read_tops, top_of
from spec_sdk.testing.defaults import MakeSampler, reference_sampler, request_for
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit
from spec_sdk.testing.trees import check_tree
from spec_sdk.tree import TokenTree

CYCLES = 4
BUDGETS = (Budget(1), Budget(2, 4), Budget(5))


def check_drafter(
    make_drafter: Callable[[], Drafter],
    vocabulary: int,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    draws: int = 1000,
    target: Target | None = None,
    make_sampler: MakeSampler = reference_sampler,
    seed: int = 0,
) -> None:
    """Raise AssertionError unless the drafters that ``make_drafter`` makes, a new one per call, behave.

    Over several cycles on ``prompts`` (random token ids below ``vocabulary`` by default), greedy and sampled: trees are
    well-formed, begin with the pending token, stay within the budget and the vocabulary, a fixed seed gives the same
    tree, and nothing in the request is changed. A drafter that serves two requests at once proposes for each of them
    what it proposes for it alone, whether they begin together or one after the other, and whichever requests had their
    slots before. Over ``draws`` seeds: drawn tokens follow the ``q_V`` that their draws declare, draw by draw, and a
    tree of chosen tokens alone depends on no seed.

    ``target`` is needed for a drafter that wants the target's hidden states or most probable tokens, or drafts with the
    target: all are taken from it. Raises ValueError if a drafter with ``taps`` or ``target_top_k`` is given none.
    """
    prompts = prompts or _random_prompts(vocabulary, seed)
    for params in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9)):
        sampler = make_sampler(params)
        for number, budget in enumerate(BUDGETS):
            alone = []
            for i, prompt in enumerate(prompts):
                trees, again = (
                    _Service(make_drafter(), vocabulary, target).serve(
                        [request_for(prompt, sampler, seed + i)], budget
                    )[0]
                    for _ in range(2)
                )
                _check_equal(trees, again, f"prompt {i}, {budget}", "the same seed gave two different trees")
                alone.append(trees)
            service = _Service(make_drafter(), vocabulary, target)
            for first in range(0, len(prompts), 2):
                pair = (first, (first + 1) % len(prompts))
                turn = number + first // 2
                states = [request_for(prompts[i], sampler, seed + i, slot=(k + turn) % 2) for k, i in enumerate(pair)]
                for i, trees in zip(pair, service.serve(states, budget, apart=turn % 2), strict=True):
                    fault = "beside another request it got another tree than alone"
                    _check_equal(alone[i], trees, f"prompt {i}, {budget}", fault)
    sampler = make_sampler(SamplingParams(temperature=1.0))
    service = _Service(make_drafter(), vocabulary, target)
    _check_laws([service.first_tree(request_for(prompts[0], sampler, seed + i)) for i in range(draws)], vocabulary)


def _random_prompts(vocabulary: int, seed: int) -> list[list[int]]:
    """Short and long ones; the last repeats itself, so that drafters that look for repetitions find some."""
    choose = random.Random(seed)
    prompts = [[choose.randrange(vocabulary) for _ in range(length)] for length in (1, 2, 9, 30)]
    return [*prompts, prompts[2] * 4]


class _Service:
    """A drafter at work for an engine that looks at everything it does."""

    def __init__(self, drafter: Drafter, vocabulary: int, target: Target | None) -> None:
        for wanted, what in ((drafter.taps, "hidden states"), (drafter.target_top_k, "most probable tokens")):
            if wanted and target is None:
                raise ValueError(f"drafter {drafter.name!r} wants the target's {what}: give check_drafter a target")
        self.drafter = drafter
        self._vocabulary = vocabulary
        self._target = target
        self._accept: dict[int, random.Random] = {}

    def serve(self, states: Sequence[RequestState], budget: Budget, apart: int = 0) -> list[list[TokenTree]]:
        """The trees of a few cycles of each request; they join so many cycles ``apart``, and leave when done."""
        trees: list[list[TokenTree]] = [[] for _ in states]
        first = [apart * i for i in range(len(states))]
        for cycle in range(CYCLES + first[-1]):
            self._start([state for state, begin in zip(states, first, strict=True) if begin == cycle])
            here = [i for i, begin in enumerate(first) if begin <= cycle < begin + CYCLES]
            for i, tree in zip(here, self._cycle([states[i] for i in here], budget), strict=True):
                trees[i].append(tree)
            self._finish([states[i] for i in here if cycle == first[i] + CYCLES - 1])
        return trees

    def first_tree(self, state: RequestState) -> TokenTree:
        """The tree of a request's first cycle, after which it is cancelled."""
        self._start([state])
        (tree,) = self._propose([state], BUDGETS[-1])
        self._finish([state])
        return tree

    def _start(self, states: Sequence[RequestState]) -> None:
        if not states:
            return
        hidden: list[Hidden] = []
        for state in states:
            # what is accepted must be the same alone and in company
            self._accept[state.slot] = random.Random(f"{state.tokens}")
            if self._target is not None:
                state.target, prompt = self._target, state.tokens[:-1]
                kept = self._target.open(state.slot, prompt, not self.drafter.taps)
                hidden.append(self._target.prefill(state.slot, prompt[kept:], self.drafter.taps))
        with self._unchanged("start", states):
            self.drafter.start([state.view for state in states], hidden if self.drafter.taps else None)

    def _propose(self, states: Sequence[RequestState], budget: Budget) -> list[TokenTree]:
        with self._unchanged("propose", states):
            trees = self.drafter.propose([state.view for state in states], [budget] * len(states))
        assert len(trees) == len(states), f"propose returned {len(trees)} trees for {len(states)} requests"
        for state, tree in zip(states, trees, strict=True):
            check_proposal(tree, state, budget, self._vocabulary)
        return trees

    def _cycle(self, states: Sequence[RequestState], budget: Budget) -> list[TokenTree]:
        """One cycle, in which some path of every tree is accepted and some other token follows it."""
        trees = self._propose(states, budget)
        accept = [self._accept[state.slot] for state in states]
        paths = [tree.path_to(choose.randrange(tree.size)) for tree, choose in zip(trees, accept, strict=True)]
        hidden: list[Hidden] = [{} for _ in states]
        tops: list[TopTokens] = []
        if self._target is not None:
            slots = [state.slot for state in states]
            scores = self._target.score(slots, trees, self.drafter.taps)
            hidden = [
                {layer: h_NM[path] for layer, h_NM in scored.hidden.items()}
                for scored, path in zip(scores, paths, strict=True)
            ]
            if count := self.drafter.target_top_k:
                tops = read_tops([top_of(scored.logits_NV, count) for scored in scores])
            self._target.commit(slots, paths)
        committed = []
        for state, tree, path, choose in zip(states, trees, paths, accept, strict=True):
            committed.append([*(tree.token_N[node] for node in path[1:]), choose.randrange(self._vocabulary)])
            state.tokens.extend(committed[-1])
            state.step += 1
        if tops:
            with self._unchanged("observe_scores", states):
                self.drafter.observe_scores([state.view for state in states], trees, tops)
        with self._unchanged("observe", states):
            self.drafter.observe([state.view for state in states], committed, hidden)
        return trees

    def _finish(self, states: Sequence[RequestState]) -> None:
        if states:
            with self._unchanged("finish", states):
                self.drafter.finish([state.view for state in states])

    @contextlib.contextmanager
    def _unchanged(self, call: str, states: Sequence[RequestState]) -> Iterator[None]:
        """Whatever a drafter reaches of a request, its random numbers apart, must stay as it is."""
        before = [_contents(state) for state in states]
        yield
        for state, old in zip(states, before, strict=True):
            changed = [name for name, value in _contents(state).items() if value != old[name]]
            assert not changed, f"drafter {self.drafter.name!r}: its {call} changed the request's {', '.join(changed)}"


def _contents(state: RequestState) -> dict[str, object]:
    values = {field.name: getattr(state, field.name) for field in fields(state) if field.name not in ("rng", "view")}
    return values | {"tokens": list(state.tokens)}


def check_proposal(tree: TokenTree, state: RequestState, budget: Budget, vocabulary: int) -> None:
    """Raise AssertionError unless ``tree`` is well-formed, of the request and within ``budget`` and ``vocabulary``."""
    where, pending = f"prefix of {len(state.tokens)} tokens, cycle {state.step}", state.view.pending_token
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


def _check_equal(trees: Sequence[TokenTree], others: Sequence[TokenTree], where: str, fault: str) -> None:
    for cycle, (tree, other) in enumerate(zip(trees, others, strict=True)):
        assert _signature(tree) == _signature(other), f"{where}, cycle {cycle}: {fault}"


def _signature(tree: TokenTree) -> tuple[object, ...]:
    kinds = tuple(tuple((draw.node, draw.kind) for draw in draws) for draws in tree.draws_N)
    return tree.token_N, tree.parent_N, kinds


def _check_laws(trees: Sequence[TokenTree], vocabulary: int) -> None:
    """Compare, for every depth and place in the draw order, what was drawn with what was declared.

    The declared laws may differ from tree to tree: each draw is fair given what came before it, so their sum is what is
    expected, and χ² is if anything too small.
    """
    observed: dict[tuple[int, int], torch.Tensor] = {}
    expected: dict[tuple[int, int], torch.Tensor] = {}
    for tree in trees:
        for key, token, q_V in _random_draws(tree):
            if key not in observed:
                observed[key], expected[key] = (torch.zeros(vocabulary, dtype=torch.float64) for _ in range(2))
            observed[key][token] += 1
            expected[key][: q_V.shape[0]] += q_V
    if not observed:
        differing = next((i for i, tree in enumerate(trees) if _signature(tree) != _signature(trees[0])), None)
        assert differing is None, (
            f"all tokens are declared chosen, but seed {differing} gave another tree than seed 0: tokens that "
            "depend on a random number are drawn, and need their q_V"
        )
    for (depth, place), counts in observed.items():
        probability = goodness_of_fit(counts, expected[depth, place])
        assert probability > SIGNIFICANCE / len(observed), (
            f"draw {place} at depth {depth}: {int(counts.sum())} drawn tokens do not follow the declared q_V "
            f"(χ² probability {probability:.1e})"
        )


def _random_draws(tree: TokenTree) -> Iterator[tuple[tuple[int, int], int, torch.Tensor]]:
    """Of every random draw: its (depth, place in draw order), its token, and the law that it was drawn from."""
    for node, draws in enumerate(tree.draws_N):
        left: dict[int, torch.Tensor] = {}
        for place, draw in enumerate(draws):
            if draw.q_V is None:
                continue
            token, q_V = tree.token_N[draw.node], draw.q_V.double().cpu()
            if draw.sequence is not None:
                q_V = left.get(draw.sequence, q_V)
                rest_V = q_V.clone()
                rest_V[token] = 0
                left[draw.sequence] = rest_V / rest_V.sum().clamp_min(torch.finfo(torch.float64).tiny)
            yield (tree.depth_N[node], place), token, q_V / q_V.sum()
