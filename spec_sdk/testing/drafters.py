"""Does a drafter keep its promises?

Legend: M model dim, P prefix length, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from spec_sdk.contracts import Budget, Drafter, Request, SamplingParams
from spec_sdk.scheduler import Target
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
    """Raise AssertionError unless the drafter that ``make_drafter`` makes, a new one per request, behaves.

    Over several cycles on ``prompts`` (random token ids below ``vocabulary`` by default), greedy and sampled: its trees
    are well-formed, begin with the pending token, stay within the budget and the vocabulary, and a fixed seed gives the
    same tree. Over ``draws`` seeds: drawn tokens follow the ``q_V`` that their draws declare, draw by draw, and a tree
    of chosen tokens alone depends on no seed.

    ``target`` is needed for a drafter that wants the target's hidden states: they are taken from it.
    """
    prompts = prompts or _random_prompts(vocabulary, seed)
    for params in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9)):
        sampler = make_sampler(params)
        for i, prompt in enumerate(prompts):
            for budget in BUDGETS:
                trees = [
                    list(_cycles(make_drafter(), request_for(prompt, sampler, seed + i), budget, vocabulary, target))
                    for _ in range(2)
                ]
                for cycle, (first, again) in enumerate(zip(*trees, strict=True)):
                    assert _signature(first) == _signature(again), (
                        f"prompt {i}, cycle {cycle}, {budget}: the same seed gave two different trees"
                    )
    sampler = make_sampler(SamplingParams(temperature=1.0))
    requests = (request_for(prompts[0], sampler, seed + i) for i in range(draws))
    _check_laws([_first_tree(make_drafter(), request, target) for request in requests], vocabulary)


def _random_prompts(vocabulary: int, seed: int) -> list[list[int]]:
    """Short and long ones; the last repeats itself, so that drafters that look for repetitions find some."""
    choose = random.Random(seed)
    prompts = [[choose.randrange(vocabulary) for _ in range(length)] for length in (1, 2, 9, 30)]
    return [*prompts, prompts[2] * 4]


def _start(drafter: Drafter, request: Request, target: Target | None) -> None:
    if not drafter.hidden_layers:
        drafter.start(request, {})
        return
    if target is None:
        raise ValueError(f"drafter {drafter.name!r} wants the target's hidden states: give check_drafter a target")
    target.reset()
    request.target = target
    drafter.start(request, target.prefill(request.tokens[:-1], drafter.hidden_layers))


def _cycles(
    drafter: Drafter, request: Request, budget: Budget, vocabulary: int, target: Target | None
) -> Iterator[TokenTree]:
    """A few cycles, in each of which some path of the tree is accepted and some other token follows it."""
    accept = random.Random(f"{request.tokens} {budget.depth}")
    _start(drafter, request, target)
    for cycle in range(CYCLES):
        tree = drafter.propose(request, budget)
        _check_proposal(tree, request, budget, vocabulary, cycle)
        yield tree
        path = tree.path_to(accept.randrange(tree.size))
        hidden: Mapping[int, torch.Tensor] = {}
        if drafter.hidden_layers and target is not None:
            scored = target.score(tree, drafter.hidden_layers).hidden
            hidden = {layer: h_NM[path] for layer, h_NM in scored.items()}
            target.commit(path)
        committed = [*(tree.token_N[node] for node in path[1:]), accept.randrange(vocabulary)]
        request.tokens.extend(committed)
        request.step += 1
        drafter.observe(request, committed, hidden)


def _check_proposal(tree: TokenTree, request: Request, budget: Budget, vocabulary: int, cycle: int) -> None:
    where = f"prefix of {len(request.tokens)} tokens, cycle {cycle}"
    try:
        check_tree(tree)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    assert tree.token_N[0] == request.pending_token, (
        f"{where}: the tree begins with token {tree.token_N[0]}, the pending token is {request.pending_token}"
    )
    assert tree.depth <= budget.depth, f"{where}: the tree has depth {tree.depth}, the budget is {budget.depth}"
    assert tree.size <= budget.nodes, f"{where}: the tree has {tree.size} nodes, the budget is {budget.nodes}"
    largest = max(tree.token_N)
    assert largest < vocabulary, f"{where}: token {largest} lies outside the vocabulary of {vocabulary}"


def _signature(tree: TokenTree) -> tuple[object, ...]:
    kinds = tuple(tuple((draw.node, draw.kind) for draw in draws) for draws in tree.draws_N)
    return tree.token_N, tree.parent_N, kinds


def _first_tree(drafter: Drafter, request: Request, target: Target | None) -> TokenTree:
    _start(drafter, request, target)
    return drafter.propose(request, BUDGETS[-1])


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
