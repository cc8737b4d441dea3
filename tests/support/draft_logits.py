"""What sessions return of draft models, as plain rows over the whole vocabulary (legend: K nodes, V vocabulary)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import DraftLogits


def rows_of(levels: Sequence[DraftLogits]) -> list[torch.Tensor]:
    """Of each request [K, V]."""
    return [logits.full_KV for logits in levels]


def roots_of(roots: Sequence[DraftLogits]) -> list[torch.Tensor]:
    """Of each request [V], where K = 1."""
    return [logits_V for logits in roots for logits_V in logits.full_KV]
