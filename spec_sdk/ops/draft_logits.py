"""The logits of drafted nodes, over the tokens that can be drafted.

An output head over some of the vocabulary's tokens gives a logit for each of these, and they stay so few: which tokens
they are of is said beside them. Rows over the whole vocabulary are made only where somebody asks for them.

Legend: K nodes, R tokens that can be drafted, V vocabulary, W tokens kept or drawn of a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from spec_sdk.ops import host_reads
from spec_sdk.ops.attention import Ops
from spec_sdk.ops.vocabulary_row import SomeLogits, spread


@dataclass(frozen=True)
class DraftLogits:
    """Logits ``logits_KR`` of K nodes, on the draft model's device.

    ``token_R``: the tokens that they are of, all different, int64 on the same device; None: the tokens 0 … R − 1. Other
    tokens of the ``vocabulary`` cannot be drafted. ``ops``: what finds the most probable ones. ``drawn_KW``: tokens of
    each node's distribution, where they are drawn already, all different, one after the other by the request's sampling
    and its next random numbers; ``probability_K``: how probable the first one was, where it is known.
    """

    logits_KR: torch.Tensor
    token_R: torch.Tensor | None
    vocabulary: int
    ops: Ops = field(default_factory=Ops, repr=False, compare=False)
    drawn_KW: tuple[tuple[int, ...], ...] | None = None
    probability_K: tuple[float, ...] | None = None

    @staticmethod
    def over_all(logits_KV: torch.Tensor, ops: Ops | None = None) -> DraftLogits:
        """Logits [K, V] of all tokens of a vocabulary."""
        return DraftLogits(logits_KV, None, logits_KV.shape[-1], ops or Ops())

    def __len__(self) -> int:
        """K."""
        return self.logits_KR.shape[0]

    @cached_property
    def full_KV(self) -> torch.Tensor:
        """Logits [K, V] of all tokens; those that cannot be drafted have -inf. Made when first asked for."""
        return spread(self.logits_KR, self.token_R, self.vocabulary)

    def row(self, node: int) -> torch.Tensor | SomeLogits:
        """One node's logits [V]; of those that can be drafted, where these are not all."""
        logits_R = self.logits_KR[node]
        if self.token_R is None and logits_R.shape[0] == self.vocabulary:
            return logits_R
        return SomeLogits(logits_R, self.token_R, self.vocabulary)

    def top(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [K, W], float32, and tokens [K, W] of each node's W = ``count`` most probable children, the
        likeliest first, in host memory; fewer where fewer can be drafted. Reads the device once.
        """
        logprob_KW, place_KW = self.ops.top_log_probabilities(self.logits_KR, count)
        token_KW = place_KW if self.token_R is None else self.token_R[place_KW]
        logprob_KW, token_KW = host_reads.read(logprob_KW, token_KW)
        return logprob_KW, token_KW

    def within(self, vocabulary: int) -> DraftLogits:
        """The same for a target of ``vocabulary`` output rows: a draft model's padding rows name no token."""
        if vocabulary == self.vocabulary:
            return self
        if vocabulary > self.vocabulary:
            return replace(self, vocabulary=vocabulary)
        if self.token_R is None:
            return replace(self, logits_KR=self.logits_KR[:, :vocabulary], vocabulary=vocabulary)
        return replace(self, logits_KR=self.full_KV[:, :vocabulary], token_R=None, vocabulary=vocabulary)
