"""A P-EAGLE head at work on several requests: its cache holds pairs of the target's states, and never a mask row.

Legend: R requests, N pairs, P positions ahead, M model dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.peagle import PEagleHead
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.runners.sequential import PLAIN


class PEagleSession(DraftHeadSession):
    """Feeds pairs, as for EAGLE-3, and guesses the tokens behind them in the same pass."""

    head: PEagleHead

    def __init__(self, executor: DraftHeadExecutor) -> None:
        super().__init__(executor)
        assert isinstance(self.head, PEagleHead)

    def ahead(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features: Sequence[torch.Tensor],
        positions: int,
    ) -> torch.Tensor:
        """Commit each slot's pairs, features [N, M], and return what predicts the ``positions`` tokens behind the last
        one, under the final norm: [R, P, M].
        """
        head, last, masks = self.head, self.head.layers, positions - 1
        masked_PM = head.mask_feature_1M.expand(masks, -1)
        requests = self._rows(slots, [[*new, *[head.mask_token] * masks] for new in tokens])
        fed = [torch.cat((features_NM, masked_PM)) for features_NM in features]
        outputs = self._run("chain", requests, PassPlan(PLAIN, (last,), "none"), fed)
        self._keep(slots, tokens)
        return head.before_output(torch.stack([output.hidden[last][0, -positions:] for output in outputs]))
