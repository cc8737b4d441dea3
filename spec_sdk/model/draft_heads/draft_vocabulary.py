"""A reduced draft vocabulary: the target's tokens that a head has logits for.

Legend: V target vocabulary, W draft vocabulary, B requests, N rows.
"""

from __future__ import annotations

import torch

from spec_sdk.errors import UserError


class DraftVocabulary:
    """Target token id of every output row of a head, ``id_W``, all different, out of ``size`` V."""

    def __init__(self, id_W: torch.Tensor, size: int) -> None:
        self.id_W = id_W
        self.size = size

    @staticmethod
    def from_offsets(d2t_W: torch.Tensor, t2d_V: torch.Tensor | None, size: int, where: str) -> DraftVocabulary:
        """The vocabulary that the tensor ``d2t`` of a checkpoint says: row i is the token i + d2t[i].

        Raises UserError for ids outside the target's vocabulary of ``size`` tokens, for an id twice, and for a ``t2d``
        that marks other tokens.
        """
        id_W = torch.arange(len(d2t_W)) + d2t_W.long().cpu()
        if int(id_W.min()) < 0 or int(id_W.max()) >= size:
            outside = id_W.max() if int(id_W.max()) >= size else id_W.min()
            raise UserError(
                f"{where}: d2t leads to token {int(outside)}, and the target's vocabulary has {size} tokens"
            )
        different = len(set(id_W.tolist()))
        if different < len(id_W):
            raise UserError(f"{where}: d2t leads to {different} different tokens, and there are {len(id_W)} rows")
        if t2d_V is not None and not torch.equal(t2d_V.cpu().bool().nonzero()[:, 0], id_W.sort().values):
            raise UserError(f"{where}: t2d marks {int(t2d_V.bool().sum())} tokens, other ones than d2t leads to")
        return DraftVocabulary(id_W, size)

    def scatter(self, logits_BNW: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary [B, N, V]; a token that the head does not know has -inf."""
        logits_BNV = logits_BNW.new_full((*logits_BNW.shape[:-1], self.size), float("-inf"))
        return logits_BNV.index_copy_(-1, self.id_W, logits_BNW)

    def to(self, device: torch.device) -> DraftVocabulary:
        """The same on a device."""
        return DraftVocabulary(self.id_W.to(device), self.size)
