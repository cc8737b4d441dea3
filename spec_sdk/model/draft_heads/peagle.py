"""The head of P-EAGLE (arXiv:2602.01469): EAGLE-3's, which guesses several positions in one pass.

Behind the pairs of the text come rows for positions whose token and feature are not known: the mask token, and one
learned set of target states that stands for theirs. Rows see what is before them, so the last pair predicts the first
draft as in EAGLE-3, and the mask row i the draft behind the one that row i − 1 predicts. Layers after the first are
Llama's.

Legend: K taps, M model dim of the head, S model dim of the target, V target vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.model.draft_heads.eagle3 import Eagle3Head, Eagle3Variant
from spec_sdk.model.draft_heads.head import HeadParts
from spec_sdk.model.draft_heads.markov import ConfidenceHead
from spec_sdk.ops.linear import Projection


class PEagleHead(Eagle3Head):
    """``mask_KS``: the target states of a position that has none. ``drafts``: most tokens that one pass drafts, if the
    head was trained for a number of them.
    """

    confidence: ConfidenceHead | None = None

    def __init__(
        self,
        parts: HeadParts,
        fc: Projection,
        fc_norms: tuple[torch.Tensor, ...],
        embedding_norm_M: torch.Tensor,
        final_norm_M: torch.Tensor,
        variant: Eagle3Variant,
        mask_token: int,
        mask_KS: torch.Tensor,
        drafts: int | None,
    ) -> None:
        super().__init__(parts, fc, fc_norms, embedding_norm_M, final_norm_M, variant)
        self.mask_token, self.drafts = mask_token, drafts
        self.mask_feature_1M = self.features(dict(zip(self.taps, mask_KS[:, None], strict=True)))

    def block_logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[..., M] → [..., V], of what :meth:`before_output` gave. A token outside the draft vocabulary has -inf."""
        return self.scaled(self.output_head(normed))
