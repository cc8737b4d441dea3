"""What is counted of an answer's cycles, from their events: acceptance by depth, passes by nodes, attention hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AttentionHits:
    """What the attention level did in one answer.

    ``hits``: per layer (accepted predictions, predictions). ``threshold``: λ of the attention verifier, None if it has
    none or one per layer. ``mean_error``: of the relative errors of all predictions.
    """

    hits: Sequence[tuple[int, int]]
    threshold: float | None = None
    mean_error: float | None = None


def depths_of(cycles: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """From (drafted, accepted) of every cycle: for each depth d from 1 how many drafted at least d deep, and how many
    accepted at least d.
    """
    deepest = max((drafted for drafted, _ in cycles), default=0)
    return [
        (sum(drafted >= depth for drafted, _ in cycles), sum(accepted >= depth for _, accepted in cycles))
        for depth in range(1, deepest + 1)
    ]


def passes_of(cycles: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, float]]:
    """Nodes of a tree → cycles that had so many, and the seconds that verifying them took."""
    passes: dict[int, tuple[int, float]] = {}
    for cycle in cycles:
        count, seconds = passes.get(cycle["tree_nodes"], (0, 0.0))
        passes[cycle["tree_nodes"]] = (count + 1, seconds + cycle["verify_s"])
    return dict(sorted(passes.items()))


def attention_of(cycles: Sequence[Mapping[str, Any]], threshold: float | None) -> AttentionHits | None:
    """Hits and predictions per layer, and the mean error; None if no cycle speculated on attention."""
    passes = [cycle["attention"] for cycle in cycles if cycle["attention"] is not None]
    if not passes:
        return None
    layers = zip(*(attention["hit"] for attention in passes), strict=True)
    hits = [(sum(hit for hit in layer if hit), sum(hit is not None for hit in layer)) for layer in layers]
    errors = [error for attention in passes for error in attention["error"] if error is not None]
    return AttentionHits(hits, threshold, sum(errors) / len(errors) if errors else None)
