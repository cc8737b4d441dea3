"""A head that drafts a block, at work on several requests: its cache holds the context, and never a block.

Legend: R requests, N positions, B rows of a block, M model dim of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.draft_heads.block_head import BlockExecutor
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.runners.sequential import PLAIN
from spec_sdk.model.session import Session
from spec_sdk.ops.pass_inputs import RequestRows


class BlockSession(Session):
    """Feeds target states to a head's cache, position by position, and asks it for blocks."""

    token_offset = 0
    """A position's token and feature are those of the same position of the text."""

    def __init__(self, executor: BlockExecutor) -> None:
        super().__init__(executor)
        self.head = executor.head

    def feed_features(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], features: Sequence[torch.Tensor]
    ) -> None:
        """Commit each slot's next positions: their tokens, and their features [N, M]."""
        self._run("chain", self._rows(slots, tokens), PassPlan(PLAIN, (), "none"), features)
        self._keep(slots, tokens)

    def blocks(self, slots: Sequence[int], anchors: Sequence[int]) -> torch.Tensor:
        """What the blocks behind each slot's context return, under the final norm: [R, B, M].

        ``anchors``: the token that comes right after each context. Nothing is committed.
        """
        head, last = self.head, self.head.layers
        requests = [self._block(slot, anchor) for slot, anchor in zip(slots, anchors, strict=True)]
        outputs = self._run("growing", requests, PassPlan(PLAIN, (last,), "none"))
        return head.normed(torch.cat([output.hidden[last] for output in outputs]))

    def forget(self, slot: int) -> None:
        """A slot's request has ended. Nothing is kept of it but the cache, which the next one overwrites."""

    def _block(self, slot: int, anchor: int) -> RequestRows:
        """Rows that all see one another, right behind the slot's context."""
        form, prefix = self.head.form, self.length(slot)
        order, position = range(form.size), range(prefix, prefix + form.size)
        tokens = [anchor, *[form.mask_token] * (form.size - 1)]
        first, end = [0] * form.size, [form.size] * form.size
        return RequestRows(slot, prefix, prefix, tokens, position, order, first, end, position)
