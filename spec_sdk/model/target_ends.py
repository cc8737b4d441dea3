"""What a draft head borrows of its target: embedding, final norm and output head.

Legend: M model dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection


@dataclass(frozen=True)
class TargetEnds:
    """The first and last parts of a target of so many ``layers``. ``vocabulary``: the length of its logits.

    ``config``: that of the target, whose sizes some heads share.
    """

    name: str
    layers: int
    vocabulary: int
    embedding: Embedding
    final_norm_M: torch.Tensor
    output_head: Projection
    config: ModelConfig

    @staticmethod
    def of(name: str, decoder: Decoder) -> TargetEnds:
        """Those of a decoder that is whole in this process; memory is shared."""
        return TargetEnds(
            name,
            decoder.layers,
            decoder.vocabulary,
            decoder.embedding,
            decoder.final_norm_M,
            decoder.output_head,
            decoder.config,
        )

    @property
    def hidden_size(self) -> int:
        """M."""
        return self.embedding.width

    def final_norm(self, h: torch.Tensor) -> torch.Tensor:
        """The norm before the output head, of hidden states [..., M] of the last block."""
        gain_M = self.final_norm_M
        return F.rms_norm(h.to(gain_M.dtype), gain_M.shape, gain_M, self.config.norm_eps_of_states).to(h.dtype)
