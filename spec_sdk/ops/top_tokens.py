"""The most probable tokens of rows of logits: of a draft for growing trees, of the target for drafters that keep them.

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


def top_log_probabilities(logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of :meth:`spec_sdk.ops.Ops.top_log_probabilities`."""
    top_NK, token_NK = logits_NV.topk(min(count, logits_NV.shape[-1]), dim=-1)
    return top_NK.float() - logits_NV.float().logsumexp(-1, keepdim=True), token_NK


def read_tops(tops: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[TopTokens]:
    """What :meth:`spec_sdk.ops.Ops.top_log_probabilities` gave for several requests, with one read of the device."""
    host = host_reads.read(*(tensor for top in tops for tensor in top))
    return [TopTokens(token_NK, top_NK.exp()) for top_NK, token_NK in zip(host[::2], host[1::2], strict=True)]
