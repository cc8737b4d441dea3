"""The formulas of P-EAGLE written down once more, in float64: the whole text is computed anew, without a cache.

Legend: N pairs, P positions ahead, S model dim of the target, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.draft_heads.plain_formulas import PlainEagle3


class PlainPEagle(PlainEagle3):
    mask = 3

    def ahead(self, tokens: Sequence[int], states: Sequence[torch.Tensor], positions: int) -> torch.Tensor:
        """Logits [P, V] of the tokens behind ``tokens``. ``states`` [N, S]: of all tokens but the last."""
        first, masks = self.prefix, positions - 1
        stand_in = self.w["mask_hidden"].flatten().chunk(len(states))
        joined = [torch.cat((state.double(), m.expand(masks, -1))) for state, m in zip(states, stand_in, strict=True)]
        x = self.layer([*tokens[1:], *[self.mask] * masks], self.features(joined))
        for i in range(1, self.config["num_hidden_layers"]):
            self.prefix = f"layers.{i}"
            x = self.after_attention(x, self.attention(self.norm(x, f"{self.prefix}.input_layernorm")))
        self.prefix = first
        return self.logits(x[-positions:])
