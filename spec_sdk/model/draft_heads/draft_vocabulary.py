"""A reduced draft vocabulary: the target's tokens that a head has logits for.

Legend: V target vocabulary, W rows of the head.
"""

from __future__ import annotations

import torch

from spec_sdk.errors import UserError


def draft_tokens(d2t_W: torch.Tensor, t2d_V: torch.Tensor | None, vocabulary: int, where: str) -> torch.Tensor:
    """The target's token of every output row [W], int64, all different: row i is the token i + ``d2t_W[i]``.

    Raises UserError for ids outside the target's ``vocabulary`` of V tokens, for an id twice, and for a ``t2d_V`` that
    marks other tokens.
    """
    token_W = torch.arange(len(d2t_W)) + d2t_W.long().cpu()
    checked_tokens(token_W, vocabulary, where, "d2t")
    if t2d_V is not None and not torch.equal(t2d_V.cpu().bool().nonzero()[:, 0], token_W.sort().values):
        raise UserError(f"{where}: t2d marks {int(t2d_V.bool().sum())} tokens, other ones than d2t leads to")
    return token_W


def checked_tokens(token_W: torch.Tensor, vocabulary: int, where: str, name: str) -> None:
    """Raise UserError unless these are different tokens of the target's ``vocabulary``. ``name``: of their tensor."""
    outside = token_W[(token_W < 0) | (token_W >= vocabulary)]
    if len(outside):
        raise UserError(
            f"{where}: {name} leads to token {int(outside[-1])}, and the target's vocabulary has {vocabulary} tokens"
        )
    different = len(set(token_W.tolist()))
    if different < len(token_W):
        raise UserError(f"{where}: {name} leads to {different} different tokens, and there are {len(token_W)} rows")
