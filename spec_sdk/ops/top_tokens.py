"""The target's most probable tokens after each node, for drafters that keep them.

Legend: N tree nodes, K tokens kept of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.ops import host_reads


@dataclass(frozen=True)
class TopTokens:
    """``token_NK[i]``: the K most probable tokens after node i, the first the likeliest; ``probability_NK``: theirs.

    Both in host memory, of int64 and float32. Probabilities are those of temperature 1, after penalty and constraint; a
    token that a constraint rules out has 0.
    """

    token_NK: torch.Tensor
    probability_NK: torch.Tensor

    def first(self, count: int) -> TopTokens:
        """The ``count`` most probable of them."""
        return TopTokens(self.token_NK[:, :count], self.probability_NK[:, :count])


def top_of(logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` most probable tokens of each row, or all if there are fewer, and their probabilities.

    Launched on the logits' device; :func:`read_tops` waits for it.
    """
    top_NK, token_NK = logits_NV.topk(min(count, logits_NV.shape[-1]), dim=-1)
    return token_NK, (top_NK.float() - logits_NV.float().logsumexp(-1, keepdim=True)).exp()


def read_tops(tops: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[TopTokens]:
    """What :func:`top_of` gave for several requests, with one read of the device."""
    host = host_reads.read(*(tensor for top in tops for tensor in top))
    return [TopTokens(*pair) for pair in zip(host[::2], host[1::2], strict=True)]
