"""Tokens that may not come yet: the ends of an answer that is to have a number of tokens first.

Legend: N rows of logits, V vocabulary, K rows that hold back, E tokens held back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from spec_sdk.ops.uploads import numbers_on


def hold_back(logits_NV: torch.Tensor, tokens: Collection[int], rows: Sequence[int]) -> None:
    """Write -inf to the logits of ``tokens`` in these rows, but where no other token is left.

    Where a constraint has left nothing else, they are the only ones that may follow. Token ids beyond V are passed
    over.
    """
    known = sorted(token for token in tokens if token < logits_NV.shape[-1])
    if not rows or not known:
        return
    row_K1, token_E = numbers_on(logits_NV.device, rows)[:, None], numbers_on(logits_NV.device, known)
    before_KE = logits_NV[row_K1, token_E]
    logits_NV[row_K1, token_E] = float("-inf")
    none_left_K1 = logits_NV.amax(-1, keepdim=True)[row_K1[:, 0]].isneginf()
    logits_NV[row_K1, token_E] = torch.where(none_left_K1, before_KE, float("-inf"))
