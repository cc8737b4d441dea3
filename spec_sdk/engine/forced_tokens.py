"""Tokens that a request's constraint leaves no choice about: they join its text without being drafted or verified.

Under the mask a forced token has probability 1, so taking it draws nothing and leaves the distribution of the answer as
it is. All that it needs is K and V: its row goes into the next pass of the target, before the root of that pass's tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.contracts.request import Request
from spec_sdk.ops.draws import Draw
from spec_sdk.tree import TokenTree

FORCED = "forced"
"""What forced tokens have as their drafter."""
WIDEST = 64
"""Most forced tokens that a tree's pass takes in: more of them get a pass without logits."""


def forced_run(request: Request, room: int) -> tuple[list[int], bool]:
    """The tokens that must follow the request's, at most ``room`` of them, and whether they end the answer: the last is
    a stop token, or the ``room`` is filled.
    """
    run: list[int] = []
    while len(run) < room:
        following = request.forced(run)
        if not following:
            break
        for token in following[: room - len(run)]:
            run.append(token)
            if token in request.stop_ids:
                return run, True
    return run, len(run) == room


def behind(lead: Sequence[int], tree: TokenTree) -> TokenTree:
    """``tree`` with the tokens ``lead`` as a chain above its root: a tree whose root is the first of them.

    Nodes of the tree are ``len(lead)`` further back; nodes of the chain and the tree's root are drawn as forced ones.
    """
    shift = len(lead)
    if not shift:
        return tree
    return TokenTree(
        token_N=(*lead, *tree.token_N),
        parent_N=(*range(-1, shift), *(parent + shift for parent in tree.parent_N[1:])),
        depth_N=(*range(shift), *(depth + shift for depth in tree.depth_N)),
        end_N=(*[tree.size + shift] * shift, *(end + shift for end in tree.end_N)),
        draws_N=(
            *((Draw(node, "chosen", drafter=FORCED),) for node in range(1, shift + 1)),
            *(tuple(_at(draw, draw.node + shift) for draw in draws) for draws in tree.draws_N),
        ),
    )


def path_behind(lead: Sequence[int], path: Sequence[int]) -> list[int]:
    """A path of a tree as one of :func:`behind`'s, which begins with all of ``lead``."""
    return [*range(len(lead)), *(len(lead) + node for node in path)]


def _at(draw: Draw, node: int) -> Draw:
    # dataclasses.replace would work out the distribution
    return Draw(node, draw.kind, draw.source, draw.drafter, draw.sequence, draw.probability)
