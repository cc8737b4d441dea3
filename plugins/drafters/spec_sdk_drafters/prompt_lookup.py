"""Prompt lookup: what followed the same n-gram earlier in the text is guessed to follow again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, option
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree


@dataclass
class PromptLookupConfig:
    """Options of ``drafter=prompt_lookup``."""

    max_ngram: int = option(3, "longest run of tokens looked up; longer matches are preferred", minimum=1)
    min_ngram: int = option(1, "shortest", minimum=1)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise UserError(f"drafter.min_ngram: {self.min_ngram} must be at most drafter.max_ngram, {self.max_ngram}")


class PromptLookup(Drafter):
    """Drafts a chain copied from the most recent earlier occurrence of the last n tokens of prompt and output.

    It needs no model. Its tokens are chosen, not drawn, so any verifier stays lossless with it.
    """

    name = "prompt_lookup"
    aliases = ("ngram",)
    Config = PromptLookupConfig
    config: PromptLookupConfig

    def __init__(self, config: PromptLookupConfig, models: Models) -> None:
        super().__init__(config, models)
        self._indices: dict[int, _Index] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            self._indices[request.slot] = _Index(self.config)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tokens, index = request.tokens, self._indices[request.slot]
        index.take_in(tokens)
        for n in range(min(self.config.max_ngram, len(tokens)), self.config.min_ngram - 1, -1):
            position = index.follows.get(tuple(tokens[-n:]))
            if position is not None:
                return TokenTree.chain(tokens[-1], tokens[position : position + budget.depth], drafter=self.name)
        return TokenTree.root_only(tokens[-1])

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._indices.pop(request.slot, None)


class _Index:
    """Where each n-gram of one request's tokens is followed."""

    def __init__(self, config: PromptLookupConfig) -> None:
        self.follows: dict[tuple[int, ...], int] = {}
        self._config = config
        self._indexed = 0

    def take_in(self, tokens: Sequence[int]) -> None:
        """Note every n-gram that ends before the last token; the latest occurrence wins."""
        for end in range(self._indexed + 1, len(tokens)):
            for n in range(self._config.min_ngram, min(self._config.max_ngram, end) + 1):
                self.follows[tuple(tokens[end - n : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
