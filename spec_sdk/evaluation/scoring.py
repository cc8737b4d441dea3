"""The likelihood of given texts: by the target's own passes, or as a relaxed pipeline would decode them.

Legend: N rows of a pass, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.model.session import Session
from spec_sdk.ops.host_reads import read
from spec_sdk.pipeline import Pipeline
from spec_sdk.tree import TokenTree

ROWS_AT_ONCE = 256
"""Tokens of a text that one plain pass scores: their logits are in memory together."""


@dataclass(frozen=True)
class Score:
    """``log_probability`` of a continuation, in nats; ``greedy``: whether each of its tokens is the likeliest there.

    ``predicted``, ``hits``: predictions of attention that were made meanwhile, over passes and layers, and accepted.
    """

    log_probability: float
    greedy: bool
    predicted: int = 0
    hits: int = 0


class Scorer:
    """Scores continuations with a pipeline's target, one after the other.

    Where the target's runner is lossless the scores are the target's own: plain passes of many tokens. Where it is
    relaxed, as with speculation on attention, each token is fed in a pass of its own through the runner, as decoding
    feeds it; the context is prefilled plainly, as every prompt is. With ``own`` they are the target's in any case. No
    temperature, penalty or filter is applied.
    """

    def __init__(self, pipeline: Pipeline, own: bool = False) -> None:
        runner = pipeline.make_target_runner()
        self.relaxed = runner.guarantee == "relaxed" and not own
        models = pipeline.models
        self._session: Session = models.session(models.target, runner if self.relaxed else None)

    def score(self, context: Sequence[int], continuation: Sequence[int]) -> Score:
        """The continuation's score after ``context``, which has one token at least."""
        session = self._session
        kept = session.open(0, context[:-1])
        session.prefill(0, context[kept:-1])
        fed, step = [context[-1], *continuation[:-1]], 1 if self.relaxed else ROWS_AT_ONCE
        total, greedy, flags = 0.0, True, list[bool]()
        for first in range(0, len(fed), step):
            part = fed[first : first + step]
            (scores,) = session.score([0], [TokenTree.chain(part[0], part[1:])])
            right_N = torch.tensor(continuation[first : first + step], device=scores.logits_NV.device)
            logprob_NV = scores.logits_NV.double().log_softmax(-1)
            logprob_N = logprob_NV.gather(-1, right_N[:, None])[:, 0]
            said_N, greedy_N = read(logprob_N, logprob_NV.argmax(-1) == right_N)
            total, greedy = total + float(said_N.sum()), greedy and bool(greedy_N.all())
            if scores.attention is not None:
                flags += [hit for hit in scores.attention.hit if hit is not None]
            session.commit([0], [range(len(part))])
        # the next continuation of this context finds what prefilling made of it, and nothing else
        session.truncate(0, len(context) - 1)
        return Score(total, greedy, len(flags), sum(flags))
