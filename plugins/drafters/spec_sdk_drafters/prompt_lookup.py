"""Prompt lookup: what followed the same n-gram earlier in the text is guessed to follow again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Budget, Drafter, Request
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree


@dataclass
class PromptLookupConfig:
    """``max_ngram``, ``min_ngram``: longest and shortest run of tokens to match; longer matches are preferred."""

    max_ngram: int = 3
    min_ngram: int = 1


class PromptLookup(Drafter):
    """Drafts a chain copied from the most recent earlier occurrence of the last n tokens of prompt and output.

    It needs no model. Its tokens are chosen, not drawn, so any verifier stays lossless with it.
    """

    name = "prompt_lookup"
    aliases = ("ngram",)
    Config = PromptLookupConfig
    config: PromptLookupConfig

    def __init__(self, config: PromptLookupConfig, models: Models) -> None:
        if not 1 <= config.min_ngram <= config.max_ngram:
            raise UserError(
                f"drafter.min_ngram: {config.min_ngram} must lie between 1 and drafter.max_ngram ({config.max_ngram})"
            )
        super().__init__(config, models)
        self._follows: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        self._follows.clear()
        self._indexed = 0

    def propose(self, request: Request, budget: Budget) -> TokenTree:
        tokens = request.tokens
        self._index(tokens)
        for n in range(min(self.config.max_ngram, len(tokens)), self.config.min_ngram - 1, -1):
            position = self._follows.get(tuple(tokens[-n:]))
            if position is not None:
                return TokenTree.chain(tokens[-1], tokens[position : position + budget.depth], drafter=self.name)
        return TokenTree.root_only(tokens[-1])

    def _index(self, tokens: list[int]) -> None:
        """Note where each n-gram that ends before the last token is followed; the latest occurrence wins."""
        for end in range(self._indexed + 1, len(tokens)):
            for n in range(self.config.min_ngram, min(self.config.max_ngram, end) + 1):
                self._follows[tuple(tokens[end - n : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
