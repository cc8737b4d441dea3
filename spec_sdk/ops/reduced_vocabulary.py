"""An output head over some of the tokens: the others have no logit but -inf, and no weights are read for them.

A draft model's head is often the larger part of its pass, and most of its vocabulary is never drafted.

Legend: V vocabulary, R tokens of the head, C other tokens, M model dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.ops.attention import Ops
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.vocabulary_row import spread

HeadRows = Callable[[torch.Tensor], torch.Tensor]
"""Tokens [C] → their rows of an output head [C, M]."""


class ReducedVocabularyHead(Projection):
    """Logits [..., V] of which those of ``token_R`` are ``head``'s, and all others -inf.

    ``rows``: the rows of any token, where the matrix that the head's are a part of is at hand. ``whole``: the head over
    all tokens that it was made of, where that is at hand.
    """

    def __init__(
        self,
        head: Projection,
        token_R: torch.Tensor,
        vocabulary: int,
        rows: HeadRows | None = None,
        whole: Projection | None = None,
    ) -> None:
        self.head = head
        self.token_R = token_R
        self.rows_of_tokens = rows
        self.whole = whole
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

    def holds(self, weight_OI: torch.Tensor) -> bool:
        return self.head.holds(weight_OI)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., V]."""
        return spread(self.head(x), self.token_R, self._vocabulary)


def rows_and_tokens(head: Projection) -> tuple[Projection, torch.Tensor | None]:
    """What multiplies the rows that an output head has, and the tokens [R] that they are of; None: of all."""
    return (head.head, head.token_R) if isinstance(head, ReducedVocabularyHead) else (head, None)


def rows_of(head: Projection, embedding: Embedding) -> HeadRows:
    """Rows of a head over all tokens, in the dtype of ``embedding``, which may be the same weights."""
    if embedding.shared_by(head):
        return embedding
    quantized, dtype = head.quantized, embedding.dtype
    if quantized is not None:
        return lambda token_C: quantized.dequantized(dtype, token_C)
    # a backend's own form that gives no rows is undone once
    return head.rows if head.gives_rows or type(head) is Projection else Projection(head.weight_OI).rows


def reduced(head: Projection, embedding: Embedding, token_R: torch.Tensor, ops: Ops) -> ReducedVocabularyHead:
    """A head over all tokens as one over ``token_R`` alone: a copy of its rows, in as many bits."""
    rows = rows_of(head, embedding)
    if head.quantized is None:
        own = ops.projection(rows(token_R))
    else:
        own = ops.quantized_projection(head.quantized.plain().rows(token_R))
    return ReducedVocabularyHead(own, token_R, head.outputs, rows, head)
