"""An output head over some of the tokens: the others have no logit but -inf, and no weights are read for them.

A draft model's head is often the larger part of its pass, and most of its vocabulary is never drafted.

Legend: V vocabulary, R tokens of the head, M model dim.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.linear import Projection


class ReducedVocabularyHead(Projection):
    """Logits [..., V] of which those of ``token_R`` are ``head``'s, and all others -inf."""

    def __init__(self, head: Projection, token_R: torch.Tensor, vocabulary: int) -> None:
        self.head = head
        self.token_R = token_R
        self._vocabulary = vocabulary
        self.quantized = head.quantized
        self.bias_O = None

    @property
    def weight_OI(self) -> torch.Tensor:
        """Those of the head's own R rows [R, M]."""
        return self.head.weight_OI

    @property
    def inputs(self) -> int:
        return self.head.inputs

    @property
    def outputs(self) -> int:
        """V."""
        return self._vocabulary

    @property
    def nbytes(self) -> int:
        return self.head.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., V]."""
        logit_R = self.head(x)
        logit_V = logit_R.new_full((*logit_R.shape[:-1], self._vocabulary), float("-inf"))
        return logit_V.index_copy_(-1, self.token_R, logit_R)
