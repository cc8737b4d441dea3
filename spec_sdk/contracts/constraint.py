"""What an answer may consist of: tokens that may not follow, by the tokens before them.

Legend: N rows of logits, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import torch


class Constraint(ABC):
    """Rules out tokens in the logits of target and draft model, before probabilities are made of them.

    One instance may serve several requests: it keeps nothing of them.
    """

    @abstractmethod
    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Write -inf to every logit whose token may not follow.

        Row i is what follows ``answer``, the tokens of the answer so far (without the prompt), and then ``paths[i]``,
        drafted tokens. Some token of every row must be left. Token ids beyond V are passed over.
        """


class SuppressedTokens(Constraint):
    """Tokens that no answer has, and tokens that no answer begins with."""

    def __init__(self, everywhere: Collection[int] = (), at_begin: Collection[int] = ()) -> None:
        self._everywhere = sorted(set(everywhere))
        self._at_begin = sorted({*everywhere, *at_begin})
        self._known: dict[tuple[bool, int, torch.device], torch.Tensor] = {}

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        first = [] if answer else [row for row, path in enumerate(paths) if not path]
        logits_NV.index_fill_(1, self._ids(False, logits_NV), float("-inf"))
        for row in first:
            logits_NV[row].index_fill_(0, self._ids(True, logits_NV), float("-inf"))

    def _ids(self, at_begin: bool, logits_NV: torch.Tensor) -> torch.Tensor:
        """Sent to the device once."""
        vocabulary, device = logits_NV.shape[-1], logits_NV.device
        key = (at_begin, vocabulary, device)
        if key not in self._known:
            ids = [token for token in (self._at_begin if at_begin else self._everywhere) if 0 <= token < vocabulary]
            self._known[key] = torch.tensor(ids, dtype=torch.long, device=device)
        return self._known[key]


class OnlyTokens(Constraint):
    """An answer of these tokens alone."""

    def __init__(self, tokens: Collection[int]) -> None:
        self._tokens = sorted(set(tokens))

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        kept = torch.tensor(self._tokens, dtype=torch.long, device=logits_NV.device)
        hidden_V = torch.ones(logits_NV.shape[-1], dtype=torch.bool, device=logits_NV.device)
        hidden_V[kept] = False
        logits_NV.masked_fill_(hidden_V, float("-inf"))
