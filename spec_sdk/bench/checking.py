"""Whether a greedy answer is plain decoding's, or differs from it where two tokens were nearly tied.

Legend: N steps, V vocabulary, W widths of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.common_prefix import common_prefix
from spec_sdk.model.executor import Executor
from spec_sdk.testing.rounding import MARGIN, WIDTHS, plain_logits

STEPS = 16
"""Of the tokens before a difference so many are scored again, to see what rounding does to their logits."""
PASSES = (*WIDTHS, 256)
"""Rows of the passes that score them: trees of many requests, or prompts, may be as many as the last, and a backend may
have another kernel for those.
"""


@dataclass(frozen=True)
class Difference:
    """Where two greedy answers part.

    ``at``: the first token that differs, from 0. ``gap``: between the logits of the two tokens there; ``allowed``: what
    rounding explains. Both are None where one answer ends and the other goes on.
    """

    at: int
    gap: float | None = None
    allowed: float | None = None

    @property
    def tie(self) -> bool:
        """Whether rounding explains it. A NaN does not."""
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """The first place where two answers differ; the shorter one's length if the longer goes on; None if equal."""
    common = common_prefix(tokens, others)
    return None if common == len(tokens) == len(others) else common


def difference(
    executor: Executor,
    prompt: Sequence[int],
    tokens: Sequence[int],
    vanilla: Sequence[int],
    repetition_penalty: float = 1.0,
) -> Difference | None:
    """Where ``tokens`` part from ``vanilla``, both greedy answers to ``prompt``; None if they are equal.

    The target scores what both have in common again, in plain passes of several widths
    (:func:`spec_sdk.testing.plain_logits`). The largest difference between two of them, of any logit at any of the last
    ``STEPS`` steps, is the noise. A pass that is off by at most ``MARGIN`` times the noise moves two logits apart by at
    most twice that, which is what is allowed.
    """
    at = first_difference(tokens, vanilla)
    if at is None:
        return None
    if at >= min(len(tokens), len(vanilla)):
        return Difference(at)
    begin = max(0, at + 1 - STEPS)
    logits_WNV = plain_logits(executor, [*prompt, *vanilla[:begin]], vanilla[begin : at + 1], PASSES).float()
    noise = float((logits_WNV.amax(0) - logits_WNV.amin(0)).max())
    logits_V = _penalised(logits_WNV[0, -1], [*prompt, *vanilla[:at]], repetition_penalty)
    gap = float((logits_V[tokens[at]] - logits_V[vanilla[at]]).abs())
    return Difference(at, gap, 2 * MARGIN * noise)


def _penalised(logits_V: torch.Tensor, before: Sequence[int], penalty: float) -> torch.Tensor:
    """The logits after a repetition penalty over the tokens ``before`` (:class:`spec_sdk.SamplingParams`)."""
    if penalty == 1:
        return logits_V
    seen = torch.tensor(sorted(set(before)), device=logits_V.device)
    of_seen = logits_V[seen]
    return logits_V.index_copy(0, seen, torch.where(of_seen > 0, of_seen / penalty, of_seen * penalty))
