"""A proposer for vLLM's ``custom_class``: chains that a drafter of spec-sdk makes of the tokens that vLLM holds.

vLLM 0.33 makes one with its configuration, and calls :meth:`Proposer.propose` after every step of its V1 model runner.
It names no requests, and may move them between the rows of its batch: a request is found again by its tokens.

Legend: R rows of the batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_sdk.tree import TokenTree
from spec_sdk_serving.hosted_drafter import HostedDrafter, drafter_options

KEPT = 4
"""Requests that are remembered, for each row of the batch: those that are not in a step may come back."""


class Proposer:
    """``vllm_config`` says how many tokens to draft. The drafter is that of ``SPEC_SDK_DRAFTER``.

    Raises UserError for a drafter that cannot work here.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.depth = int(vllm_config.speculative_config.num_speculative_tokens)
        model = getattr(vllm_config, "model_config", None)
        self.longest = int(getattr(model, "max_model_len", None) or 2**31)
        self.hosted = HostedDrafter(drafter_options())
        self._numbers = 0

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """There is nothing to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """A chain for each row, empty for one that has sampled nothing, as while its prompt is read.

        ``num_tokens_no_spec`` [R]: how many tokens of ``token_ids_cpu`` [R, T] are the row's text.
        """
        drafts: list[list[int]] = []
        unseen = {key for key in self.hosted.keys}
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            room = min(self.depth, self.longest - length - 1)
            if not len(sampled) or length < 1 or room < 1:
                drafts.append([])
                continue
            tokens = token_ids_cpu[row, :length]
            key = self._key_of(row, tokens, unseen)
            unseen.discard(key)
            drafts.append(chain_of(self.hosted.propose(key, tokens.tolist(), room, room + 1)))
        most = KEPT * max(1, len(sampled_token_ids))
        known = self.hosted.keys
        self.hosted.forget([key for key in known if key in unseen][: max(0, len(known) - most)])
        return drafts

    def _key_of(self, row: int, tokens: np.ndarray, unseen: set[Any]) -> Any:
        """The key of the request whose text goes on as ``tokens``, the longest such text; a new one if none does."""
        going_on = [key for key in unseen if _goes_on(self.hosted.tokens_of(key), tokens)]
        if going_on:
            return max(going_on, key=lambda key: len(self.hosted.tokens_of(key)))
        self._numbers += 1
        return self._numbers


def _goes_on(known: list[int], tokens: np.ndarray) -> bool:
    # the last one first: it tells most texts apart
    end = len(known)
    return end <= len(tokens) and known[-1] == tokens[end - 1] and bool(np.array_equal(known, tokens[:end]))


def chain_of(tree: TokenTree) -> list[int]:
    """The first path of a tree, whose nodes stand in pre-order: its root left out."""
    chain = 1
    while chain < tree.size and tree.parent_N[chain] == chain - 1:
        chain += 1
    return list(tree.token_N[1:chain])
