"""What a plugin may not hand to the scheduler.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from spec_sdk.contracts.request import Budget, Verdict
from spec_sdk.counted import counted
from spec_sdk.model.session import token_fault
from spec_sdk.ops.draws import DRAW_KINDS, DraftDistribution, Draw
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk.tree import TokenTree

MASS, ROUNDED_MASS = 1e-3, 2e-2
"""How far from 1 a distribution's sum may be, and that of one in half precision."""


def budget_fault(budget: object) -> str | None:
    """What makes a policy's budget unusable; None if nothing does."""
    if not isinstance(budget, Budget):
        return f"{budget!r} is no Budget"
    for name, value, least in (("depth", budget.depth, 0), ("nodes", budget.nodes, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            return f"a budget's {name} is a whole number of {least} or more, not {value!r}"
    for name, number in (("level_cost", budget.level_cost), ("tokens_per_second", budget.tokens_per_second)):
        if not isinstance(number, int | float) or not number >= 0:
            return f"a budget's {name} is a number of 0 or more, not {number!r}"
    try:
        # looked at in every step: the sum of what holds another thing or NaN is none
        sound = not math.isnan(sum(budget.node_costs))
    except TypeError:
        sound = False
    return None if sound else f"a budget's node_costs are numbers, not {budget.node_costs!r}"


def tree_fault(tree: object, pending_token: int, budget: Budget, vocabulary: int) -> str | None:
    """What makes a proposed tree unusable, naming the node; None if nothing does."""
    if not isinstance(tree, TokenTree):
        return f"{tree!r} is no TokenTree"
    if tree.token_N[0] != pending_token:
        return f"tree node 0 is token {tree.token_N[0]}, the pending token is {pending_token}"
    if tree.depth > budget.depth:
        node = next(i for i, depth in enumerate(tree.depth_N) if depth > budget.depth)
        return f"tree node {node} has depth {tree.depth_N[node]}, the budget is a depth of {budget.depth}"
    if tree.size > budget.nodes:
        return f"tree node {budget.nodes}: the tree has {tree.size} nodes, the budget is {budget.nodes} with the root"
    size, parent_N = tree.size, tree.parent_N
    for node, draws in enumerate(tree.draws_N):
        for draw in draws:
            if not 0 < draw.node < size or parent_N[draw.node] != node:
                return f"tree node {node}: a draw made there is of node {draw.node}, which is no child of it"
    return token_fault(tree, vocabulary)


def draws_fault(tree: TokenTree, vocabulary: int) -> str | None:
    """What makes a proposed tree's draws unusable beside logits of ``vocabulary`` tokens, naming the node; None if
    nothing does. A distribution that is handed over as a tensor in host memory must be one. Others are not read, and
    that a token was drawn from its own the drafter answers for.
    """
    for draws in tree.draws_N:
        for draw in draws:
            # most are such, and a step may have dozens
            if draw.kind == "chosen" and draw.source is None:
                continue
            if fault := _draw_fault(draw, vocabulary):
                return f"tree node {draw.node}: {fault}"
    return None


def _draw_fault(draw: Draw, vocabulary: int) -> str | None:
    source = draw.source
    if draw.kind not in DRAW_KINDS:
        return f"its draw is {draw.kind!r}, which is none of {', '.join(DRAW_KINDS)}"
    if (source is None) != (draw.kind == "chosen"):
        return f"a drawn token needs its q_V, a chosen one has none (kind {draw.kind!r})"
    if source is None:
        return None
    given = source.given if isinstance(source, DraftDistribution) else source
    held = given.logits_R if isinstance(given, SomeLogits) else given
    if not isinstance(held, torch.Tensor):
        return f"its q_V is of type {type(held).__name__}, and no tensor"
    if given.shape != (vocabulary,) or not held.is_floating_point():
        return f"its q_V is {held.dtype} of shape {list(given.shape)}, it must be floating-point of [{vocabulary}]"
    if held.requires_grad:
        return "its q_V requires a gradient; draft under torch.no_grad()"
    # a wait for a device would cost more than all else here
    return _mass_fault(source) if source is held and held.device.type == "cpu" else None


def _mass_fault(q_V: torch.Tensor) -> str | None:
    mass, least = float(q_V.sum(dtype=torch.promote_types(q_V.dtype, torch.float32))), float(q_V.min())
    if least >= 0 and abs(mass - 1) <= (ROUNDED_MASS if q_V.element_size() < 4 else MASS):
        return None
    return f"its q_V is no distribution: it sums to {mass:.6g}, its least is {least:.6g}"


def verdict_fault(verdict: object, tree: TokenTree, vocabulary: int) -> str | None:
    """What makes a verdict on ``tree`` unusable, naming the node; None if nothing does."""
    if not isinstance(verdict, Verdict):
        return f"{verdict!r} is no Verdict"
    if verdict.tree is not tree:
        return "the verdict is on another tree"
    if not verdict.path or verdict.path[0] != 0:
        return f"the accepted path {verdict.path} does not begin with the root, node 0"
    for parent, node in zip(verdict.path, verdict.path[1:], strict=False):
        if not 0 < node < tree.size:
            return f"the accepted path has node {node}, the tree has {counted(tree.size, 'node')}"
        if tree.parent_N[node] != parent:
            return f"tree node {node} follows node {parent} in the accepted path, its parent is {tree.parent_N[node]}"
    if not isinstance(verdict.next_token, int):
        return f"the next token {verdict.next_token!r} is no int"
    if not 0 <= verdict.next_token < vocabulary:
        return f"the next token {verdict.next_token!r} lies outside the vocabulary of {vocabulary}"
    return None


def count_fault(answers: object, wanted: int, what: str) -> str | None:
    """What makes ``answers`` no list of one ``what`` for each of ``wanted`` requests; None if nothing does."""
    if not isinstance(answers, Sequence):
        return f"it returned {answers!r}, and no list of {what}s"
    if len(answers) != wanted:
        return f"it returned {counted(len(answers), what)} for {counted(wanted, 'request')}"
    return None
