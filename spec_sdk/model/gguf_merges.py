"""Merges of a SentencePiece BPE vocabulary, which stores only a score per piece."""

from __future__ import annotations

from collections.abc import Mapping


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to make a piece from two others, best piece first.

    SentencePiece merges, at each step, the two neighbours whose joined piece has the highest score. Of several ways to
    make one piece, the one with the better left part, then the better right part, comes first (Hugging Face's order).
    """
    rank = {piece: i for i, piece in enumerate(scores)}
    merges = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in rank and right in rank:
                merges.append((-score, rank[piece], rank[left], rank[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]
