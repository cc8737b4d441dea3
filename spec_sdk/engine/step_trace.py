"""What a step did with a request's tree, for whoever asks to see it: nodes, probabilities, the path that was kept.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts.request import Verdict
from spec_sdk.ops import host_reads
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.tree import TokenTree


@dataclass(frozen=True)
class StepTrace:
    """A tree, node by node in pre-order, and what was emitted of it; node 0 is the pending token.

    ``drafter_N``: who proposed the node, each name once. ``draft_probability_N``: how probable it was to its (first)
    drafter: of the distribution that it was drawn from, or what the drafter of a chosen token said; None if it said
    nothing, and at the root. ``target_probability_N``: the target's own, after the node's parent: at temperature 1,
    before penalties, bias, constraint and filters. ``path``: the nodes that were kept, the root first. ``next_token``:
    what the target added, ``next_probability`` the target's own. It is None where the answer had ended before.
    """

    token_N: list[int]
    parent_N: list[int]
    drafter_N: list[list[str]]
    draft_probability_N: list[float | None]
    target_probability_N: list[float | None]
    path: list[int]
    next_token: int | None
    next_probability: float | None


@dataclass(frozen=True)
class Traced:
    """What a trace is made of. ``logits_NV`` [N, V]: the target's own. ``emitted``: tokens that the answer took."""

    tree: TokenTree
    verdict: Verdict
    logits_NV: torch.Tensor
    emitted: int


def read_traces(traced: Sequence[Traced]) -> list[StepTrace]:
    """A trace of each, with one read of the device for all."""
    queued: list[torch.Tensor] = []
    places: list[list[int]] = []
    for one in traced:
        drawn = _drawn(one.tree)
        places.append(list(drawn))
        queued += [_target_probabilities(one), torch.stack(list(drawn.values())) if drawn else torch.empty(0)]
    host = [tensor.tolist() for tensor in host_reads.read(*queued)]
    return [
        _trace(one, [float(p) for p in host[2 * i]], dict(zip(nodes, host[2 * i + 1], strict=True)))
        for i, (one, nodes) in enumerate(zip(traced, places, strict=True))
    ]


def _drawn(tree: TokenTree) -> dict[int, torch.Tensor]:
    """Of every node that was drawn at random, its probability (a scalar) where it was first drawn from."""
    found: dict[int, torch.Tensor] = {}
    for draws in tree.draws_N:
        for draw in draws:
            if (q_V := draw.q_V) is not None and draw.node not in found:
                found[draw.node] = q_V[tree.token_N[draw.node]].float()
    return found


def _target_probabilities(one: Traced) -> torch.Tensor:
    """[N]: of the nodes but the root, after their parents; last, of the token that the target added."""
    rows = [*one.tree.parent_N[1:], one.verdict.path[-1]]
    tokens = [*one.tree.token_N[1:], one.verdict.next_token]
    device = one.logits_NV.device
    logprob_NV = one.logits_NV.float().log_softmax(-1)
    return logprob_NV[numbers_on(device, rows), numbers_on(device, tokens)].exp()


def _trace(one: Traced, target: Sequence[float], drawn: dict[int, float]) -> StepTrace:
    tree, path = one.tree, one.verdict.path
    drafter_N: list[list[str]] = [[] for _ in range(tree.size)]
    said_N: list[float | None] = [None] * tree.size
    for draws in tree.draws_N:
        for draw in draws:
            if draw.drafter not in drafter_N[draw.node]:
                drafter_N[draw.node].append(draw.drafter)
            if said_N[draw.node] is None:
                said_N[draw.node] = drawn.get(draw.node, draw.probability)
    whole = one.emitted == len(path)
    return StepTrace(
        token_N=list(tree.token_N),
        parent_N=list(tree.parent_N),
        drafter_N=drafter_N,
        draft_probability_N=said_N,
        target_probability_N=[None, *target[:-1]],
        path=path[: one.emitted + 1],
        next_token=one.verdict.next_token if whole else None,
        next_probability=target[-1] if whole else None,
    )
