"""A row over the vocabulary of which only some tokens have a logit.

Legend: R tokens that have one, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class SomeLogits:
    """``logits_R``: those of ``token_R``, all different, int64 on the same device; None: of the tokens 0 … R − 1. All
    others of the ``vocabulary`` have -inf.

    Raises ValueError for tokens that are not int64 [R].
    """

    logits_R: torch.Tensor
    token_R: torch.Tensor | None
    vocabulary: int

    def __post_init__(self) -> None:
        token_R = self.token_R
        if token_R is not None and (token_R.dtype != torch.int64 or token_R.shape != self.logits_R.shape):
            raise ValueError(
                f"tokens of {token_R.dtype} {list(token_R.shape)} beside logits {list(self.logits_R.shape)}; they must "
                "be int64, one for each"
            )

    @property
    def shape(self) -> torch.Size:
        """[V]."""
        return torch.Size((self.vocabulary,))

    @cached_property
    def full_V(self) -> torch.Tensor:
        """Logits [V] of all tokens. Made when first asked for."""
        return spread(self.logits_R, self.token_R, self.vocabulary)


def spread(logits: torch.Tensor, token_R: torch.Tensor | None, vocabulary: int) -> torch.Tensor:
    """Logits [..., R] of the tokens ``token_R``, or of 0 … R − 1, as [..., V]; those of all others are -inf."""
    if token_R is None:
        missing = vocabulary - logits.shape[-1]
        return F.pad(logits, (0, missing), value=float("-inf")) if missing else logits
    full = logits.new_full((*logits.shape[:-1], vocabulary), float("-inf"))
    return full.index_copy_(-1, token_R, logits)
