"""Log-probabilities of emitted tokens, from the logits that the target gave at their nodes.

Legend: N tree nodes, V vocabulary, n emitted tokens, K alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.ops import host_reads
from spec_sdk.ops.uploads import numbers_on


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token, and of the most probable ones in its place, the likeliest first.

    Natural logarithms of the target's own distribution at temperature 1: before penalties, bias, constraint,
    temperature and filters. So they say the same of a token whatever it was drawn by.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Asked:
    """``logits_nV``: the target's, of the rows that the ``tokens`` follow. ``top``: alternatives wanted, K of them."""

    logits_nV: torch.Tensor
    tokens: Sequence[int]
    top: int


def read_logprobs(asked: Sequence[Asked]) -> list[list[TokenLogprob]]:
    """Of every token of every request, with one read of the device for all."""
    tensors: list[torch.Tensor] = []
    for one in asked:
        logprob_nV = one.logits_nV.float().log_softmax(-1)
        token_n1 = numbers_on(logprob_nV.device, one.tokens)[:, None]
        best = logprob_nV.topk(min(one.top, logprob_nV.shape[-1]), -1)
        tensors += [logprob_nV.gather(-1, token_n1)[:, 0], best.values, best.indices]
    host = [tensor.tolist() for tensor in host_reads.read(*tensors)]
    return [
        [
            TokenLogprob(token, value, tuple(zip(indices, values, strict=True)))
            for token, value, values, indices in zip(one.tokens, *host[3 * i : 3 * i + 3], strict=True)
        ]
        for i, one in enumerate(asked)
    ]
