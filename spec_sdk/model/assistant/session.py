"""An assistant at work on several requests: what each attends to while its tree grows, and the states of the tree.

Legend: K nodes of a level, T nodes of a tree, N positions, W the target's model dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.model.assistant.model import Assistant, KeysValues, TextInSight
from spec_sdk.model.context_vocabulary import ContextVocabulary
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.session import Session
from spec_sdk.ops import DraftLogits
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.tree import TreeBuilder


class AssistantSession:
    """Nothing is fed to it: it reads the target's cache. What it keeps of a request is by slot."""

    context_vocabulary: ContextVocabulary | None = None

    def __init__(self, assistant: Assistant) -> None:
        self.assistant = assistant
        self._texts: dict[int, TextInSight] = {}
        self._states_TW: dict[int, torch.Tensor] = {}

    def begin(
        self, target: Session, slots: Sequence[int], tokens: Sequence[int], states: Sequence[torch.Tensor]
    ) -> list[DraftLogits]:
        """Logits after each slot's pending token, K = 1. ``states``: the target's last one [1, W] of the token before,
        which is the last that the target's cache has.
        """
        assert isinstance(target.cache, KVCache)
        for slot in slots:
            self._texts[slot] = self._in_sight(target.cache, slot, target.length(slot))
            self._states_TW[slot] = torch.empty(0)
        return self._step(slots, [[token] for token in tokens], [self.assistant.first_state(s_1W) for s_1W in states])

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        """Feed each tree's ``new_nodes`` youngest nodes; return their logits."""
        cases = list(zip(slots, trees, new_nodes, strict=True))
        device = self.assistant.device
        states = [self._states_TW[slot][numbers_on(device, tree.parent[-new:])] for slot, tree, new in cases]
        return self._step(slots, [tree.token[-new:] for _, tree, new in cases], states)

    def forget(self, slot: int) -> None:
        """A slot's request has ended."""
        self._texts.pop(slot, None)
        self._states_TW.pop(slot, None)

    def _step(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], states: Sequence[torch.Tensor]
    ) -> list[DraftLogits]:
        counts = [len(of_slot) for of_slot in tokens]
        token_K = numbers_on(self.assistant.device, [token for of_slot in tokens for token in of_slot])
        texts = [(count, self._texts[slot]) for count, slot in zip(counts, slots, strict=True)]
        with torch.no_grad():
            logits_KV, state_KW = self.assistant.step(token_K, torch.cat(list(states)), texts)
        for slot, own_KW in zip(slots, torch.split(state_KW, counts), strict=True):
            earlier_TW = self._states_TW[slot]
            self._states_TW[slot] = torch.cat((earlier_TW, own_KW)) if len(earlier_TW) else own_KW
        return [DraftLogits.over_all(own_KV, self.assistant.ops) for own_KV in torch.split(logits_KV, counts)]

    def _in_sight(self, cache: KVCache, slot: int, length: int) -> TextInSight:
        """What a request's rows attend to behind the ``length`` tokens that the target's cache has."""
        window = next((window for window in self.assistant.config.windows if window is not None), None)
        found: dict[bool, KeysValues] = {}
        for is_global, layer in self.assistant.sources.items():
            # transformers' window of an assistant counts from the last key, and includes one at its distance
            first = 0 if is_global or window is None else max(0, length - window - 1)
            found[is_global] = cache.rows_of(layer, slot, first, length)
        return TextInSight(length, found.get(False), found.get(True))
