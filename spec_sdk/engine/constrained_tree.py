"""A drafted tree under a request's constraint: without tokens that may not follow, and with those that must.

Both are done here, for whatever drafter, and neither touches the distribution of the output. A chosen token that the
target's mask rules out is rejected by every rule and leaves the residual distribution as it is, so it may as well not
be there; a drawn one stays, for it says what the draft model's distribution was. A token that is added is a chosen one
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts.constraint import called, in_words
from spec_sdk.contracts.request import Budget, Request, RequestState
from spec_sdk.counted import counted
from spec_sdk.engine.forced_tokens import FORCED
from spec_sdk.errors import CallOf, PluginFault, RequestError, of_request
from spec_sdk.tree import TokenTree, TreeBuilder


@dataclass(frozen=True)
class ConstrainedTree:
    """``drafted``: what is left of the drafter's tree. ``pruned``: nodes that were taken out of it. ``tree``: the one
    that is scored, with the ``added`` nodes, a chain.
    """

    tree: TokenTree
    drafted: TokenTree
    pruned: int = 0
    added: range = range(0)

    def drafted_path(self, path: Sequence[int]) -> list[int]:
        """Of a path in ``tree``, its nodes in ``drafted``, by their numbers there."""
        return [node - len(self.added) * (node >= self.added.stop) for node in path if node not in self.added]


def constrained_tree(tree: TokenTree, request: Request, budget: Budget, add: bool = True) -> ConstrainedTree:
    """``tree`` as the request's constraint has it, within the budget.

    With ``add``, forced tokens are added behind the path of first children, the drafter's best guess.
    """
    built = TreeBuilder(tree.token_N[0], max(budget.nodes, tree.size))
    number, paths = {0: 0}, {0: list[int]()}
    for node in range(tree.size):
        if node not in paths:
            continue
        for draw in tree.draws_N[node]:
            child, token = draw.node, tree.token_N[draw.node]
            allowed = child in paths or request.allows(paths[node], token)
            if not allowed and draw.kind == "chosen":
                continue
            number[child] = built.add(
                number[node], token, draw.kind, draw.source, draw.drafter, draw.sequence, draw.probability
            )
            if allowed:
                paths.setdefault(child, [*paths[node], token])
    pruned, size = tree.size - built.size, built.size
    drafted = built.build().tree if pruned else tree
    leaf, path = _first_leaf(built)
    if add and leaf:
        _add_forced(built, leaf, path, request, budget)
    if built.size == size:
        return ConstrainedTree(drafted, drafted, pruned)
    whole = built.build()
    first = whole.preorder[size]
    return ConstrainedTree(whole.tree, drafted, pruned, range(first, first + built.size - size))


def _first_leaf(built: TreeBuilder) -> tuple[int, list[int]]:
    node, path = 0, list[int]()
    while built.draws[node]:
        node = built.draws[node][0].node
        path.append(built.token[node])
    return node, path


def _add_forced(built: TreeBuilder, leaf: int, path: list[int], request: Request, budget: Budget) -> None:
    """Add what must follow ``leaf``, which ``path`` leads to, as far as the budget goes."""
    while forced := request.forced(path):
        for token in forced:
            if not built.room or built.depth[leaf] >= budget.depth:
                return
            leaf = built.add(leaf, token, "chosen", drafter=FORCED)
        path = [*path, *forced]


def check_mask(state: RequestState, vocabulary: int, path: Sequence[int]) -> None:
    """Raise PluginFault, as this request's error, if its constraint leaves no token after these drafted ones, or
    writes anything but -inf.
    """
    constraint, request = state.constraint, state.view
    if constraint is None:
        return
    row_1V = torch.zeros((1, vocabulary))
    with CallOf("constraint", called(constraint)):
        of_request(request.id, constraint.apply, row_1V, request.tokens[request.prompt_length :], [path])
    fault = None
    if row_1V.isneginf().all():
        fault = "its mask leaves none that may follow"
    elif row_1V.isnan().any() or row_1V.isposinf().any():
        fault = "its mask has NaN or infinity where it is to have -inf"
    if fault is not None:
        where = f"{counted(request.new_tokens + len(path), 'token')} of an answer"
        told = PluginFault(f"{in_words(constraint)}: after {where} {fault}")
        raise RequestError(request.id, told) from told
