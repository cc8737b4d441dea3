"""What is added to a request's logits: a bias of single tokens, and penalties of what its answer has already.

Legend: N rows of logits, V vocabulary, B biased tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from spec_sdk.ops.uploads import numbers_on


class LogitOffsets:
    """``logit_bias``, ``presence_penalty`` and ``frequency_penalty`` as the OpenAI API defines them.

    The logit of token t gets ``bias[t]``, less ``frequency`` times the number of times that t stands in the answer, and
    less ``presence`` if it stands there at all. The prompt does not count; drafted tokens before a node of a tree do,
    so that it is the same change as in plain decoding. Nothing is kept of a request, and one may serve several.
    """

    def __init__(self, bias: Mapping[int, float], presence: float = 0.0, frequency: float = 0.0) -> None:
        self._bias = dict(sorted(bias.items()))
        self._presence = presence
        self._frequency = frequency

    @property
    def tokens(self) -> Sequence[int]:
        """The biased ones."""
        return list(self._bias)

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """The changed logits: float32 for those of 16 bits, which would round the offsets away; others are written to.

        Row i is what follows ``answer``, the tokens of the answer so far, and then ``paths[i]``, drafted tokens. Token
        ids beyond V are passed over.
        """
        if logits_NV.dtype in (torch.bfloat16, torch.float16):
            logits_NV = logits_NV.float()
        vocabulary = logits_NV.shape[-1]
        bias = {token: value for token, value in self._bias.items() if token < vocabulary}
        if bias:
            self._add(logits_NV, slice(None), bias)
        if self._presence or self._frequency:
            common = Counter(token for token in answer if token < vocabulary)
            penalties = {token: self._penalty(count) for token, count in common.items()}
            if penalties:
                self._add(logits_NV, slice(None), penalties)
            for row, path in enumerate(paths):
                counts = Counter(token for token in path if token < vocabulary)
                # what the whole of them costs, less what the answer's own were charged already
                more = {t: self._penalty(common[t] + n) - penalties.get(t, 0.0) for t, n in counts.items()}
                if more:
                    self._add(logits_NV, row, more)
        return logits_NV

    def _penalty(self, count: int) -> float:
        return -(self._presence + self._frequency * count)

    @staticmethod
    def _add(logits_NV: torch.Tensor, rows: int | slice, offsets: Mapping[int, float]) -> None:
        token_B = numbers_on(logits_NV.device, list(offsets))
        value_B = numbers_on(logits_NV.device, list(offsets.values()), logits_NV.dtype)
        logits_NV[rows, token_B] += value_B
