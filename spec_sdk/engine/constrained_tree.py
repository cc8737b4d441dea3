"""A drafted tree under a request's constraint: without tokens that may not follow, and with those that must.

Both are done here, for whatever drafter, and neither touches the distribution of the output. A chosen token that the
target's mask rules out is rejected by every rule and leaves the residual distribution as it is, so it may as well not
be there; a drawn one stays, for it says what the draft model's distribution was. A token that is added is a chosen one
more.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts.request import Budget, Request
from spec_sdk.tree import TokenTree, TreeBuilder

FORCED = "forced"
"""What added tokens' draws have as their drafter."""


@dataclass(frozen=True)
class ConstrainedTree:
    """``pruned``: nodes that were taken out."""

    tree: TokenTree
    pruned: int = 0

    def event(self, path: list[int], seconds: float) -> dict[str, float]:
        """What is told of it: nodes pruned, tokens added, those of them on the accepted ``path``, and the seconds that
        the host spent on the constraint.
        """
        forced = {d.node for draws in self.tree.draws_N for d in draws if d.drafter == FORCED}
        accepted = len(forced.intersection(path))
        return {"seconds": seconds, "pruned": self.pruned, "forced": len(forced), "forced_accepted": accepted}


def constrained_tree(
    tree: TokenTree, request: Request, budget: Budget, add: bool = True, branch: bool = True
) -> ConstrainedTree:
    """``tree`` as the request's constraint has it, within the budget.

    Forced tokens are added behind the root, and behind the path of first children: the drafter's best guess. ``add``:
    whether they are at all. ``branch``: whether they may stand beside what the drafter proposed.
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
    if add:
        _add_forced(built, 0, [], request, budget, branch)
        node, path = _first_leaf(built)
        if 0 < node < size:
            _add_forced(built, node, path, request, budget, branch)
    if not pruned and built.size == tree.size:
        return ConstrainedTree(tree)
    return ConstrainedTree(built.build().tree, pruned)


def _first_leaf(built: TreeBuilder) -> tuple[int, list[int]]:
    node, path = 0, list[int]()
    while built.draws[node]:
        node = built.draws[node][0].node
        path.append(built.token[node])
    return node, path


def _add_forced(built: TreeBuilder, node: int, path: list[int], request: Request, budget: Budget, branch: bool) -> None:
    """Add what must follow ``node``, which ``path`` leads to, as far as the budget goes."""
    while forced := request.forced(path):
        for token in forced:
            child = built.child(node, token)
            if child is None:
                if not built.room or built.depth[node] >= budget.depth or (built.draws[node] and not branch):
                    return
                child = built.add(node, token, "chosen", drafter=FORCED)
            node = child
        path = [*path, *forced]
