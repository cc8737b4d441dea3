"""Trees that grow in one call beside the same level by level, in two sessions of one model or head.

Legend: N pairs, M model dim.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from spec_sdk.contracts import DraftLogits
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.ops.grown_paths import GrownPaths, ProbablePaths
from spec_sdk.tree import TreeBuilder
from spec_sdk_growth.beam import grow_beam

Fed = tuple[list[int], torch.Tensor | None]
"""Tokens to commit, and their features [N, M]."""
FedLevel = tuple[list[int], list[int], DraftLogits]
"""Tokens, parents and logits of a level."""


def level_by_level(
    session: Session, root: DraftLogits, token: int, slot: int, paths: ProbablePaths, ops: Ops | None = None
) -> list[FedLevel]:
    """What the growth feeds by itself. ``ops``: what finds the most probable children; None: what the logits have."""
    tree, reached, found = TreeBuilder(token, paths.nodes), [1.0], list[FedLevel]()

    def given(logits: DraftLogits) -> DraftLogits:
        return logits if ops is None else replace(logits, ops=ops)

    growing = grow_beam(tree, given(root), paths.depth, paths.width, "tests")
    try:
        asked = next(growing)
        while True:
            for node in range(len(reached), tree.size):
                draws = tree.draws[tree.parent[node]]
                (chance,) = (draw.probability for draw in draws if draw.node == node)
                reached.append(reached[tree.parent[node]] * (chance or 0.0))
            if sum(reached[-asked:]) < paths.least_reach:
                return found
            (logits,) = session.grow([slot], [tree], [asked])
            found.append((tree.token[-asked:], tree.parent[-asked:], logits))
            asked = growing.send(given(logits))
    except StopIteration:
        return found


def fed_and_grown(
    session: Session, slot: int, tokens: list[int], paths: ProbablePaths, features_NM: torch.Tensor | None = None
) -> GrownPaths:
    """What grows behind one request's tokens, and a head's features."""
    if isinstance(session, DraftHeadSession):
        assert features_NM is not None
        (grown,) = session.feed_pairs_and_grow([slot], [tokens], [features_NM], [paths])
    else:
        (grown,) = session.feed_and_grow([slot], [tokens], [paths])
    return grown


def fed_to_both(
    ahead: Session, plain: Session, slot: int, fed: Fed, paths: ProbablePaths
) -> tuple[list[int], GrownPaths, DraftLogits]:
    """The tokens, what grew behind them in one session, and the root's logits in the other one's plain pass."""
    tokens, features_NM = fed
    for session in (ahead, plain):
        if session.context_vocabulary is not None:
            session.context_vocabulary.follow(slot, tokens)
    grown = fed_and_grown(ahead, slot, tokens, paths, features_NM)
    if isinstance(plain, DraftHeadSession):
        assert features_NM is not None
        (root,) = plain.feed_pairs([slot], [tokens], [features_NM])
    else:
        (root,) = plain.feed([slot], [tokens])
    return tokens, grown, root


def keep_a_path(ahead: Session, plain: Session, slot: int, root: int, grown: GrownPaths) -> None:
    """Of the first level its last node, and nothing of a level that nobody asked for."""
    if not grown.levels:
        return
    tree, first = TreeBuilder(root), grown.levels[0]
    for token in first.token_K:
        tree.add(0, token, "chosen")
    ahead.keep_grown(slot, tree, tree.size - 1)
    for session in (ahead, plain):
        session.commit([slot], [[len(first.token_K) - 1]])
        assert session.tokens(slot)[-2:] == [root, first.token_K[-1]]
