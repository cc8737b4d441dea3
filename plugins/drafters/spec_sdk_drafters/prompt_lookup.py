"""Prompt lookup: what followed the same n-gram earlier in the text is guessed to follow again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, option
from spec_sdk.errors import UserError
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree, TreeBuilder

OCCURRENCES = 4
"""Of each n-gram so many times ``matches`` occurrences are kept, the latest: many go on alike."""


@dataclass
class PromptLookupConfig:
    """Options of ``drafter=prompt_lookup``."""

    max_ngram: int = option(3, "longest run of tokens looked up; longer matches are preferred", minimum=1)
    min_ngram: int = option(1, "shortest", minimum=1)
    matches: int = option(
        1, "earlier occurrences that are followed, each a path of a tree", minimum=1, means={1: "a chain"}
    )

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise UserError(f"drafter.min_ngram: {self.min_ngram} must be at most drafter.max_ngram, {self.max_ngram}")


class PromptLookup(Drafter):
    """Drafts what followed earlier occurrences of the last n tokens of prompt and output, the most recent first.

    With several ``matches`` their continuations are merged by common prefix: those of longer n-grams first, and of one
    length the most recent first, as far as the budget's nodes go. It needs no model. Its tokens are chosen, not drawn,
    so any verifier stays lossless with it.
    """

    name = "prompt_lookup"
    aliases = ("ngram",)
    Config = PromptLookupConfig
    config: PromptLookupConfig

    def __init__(self, config: PromptLookupConfig, models: Models) -> None:
        super().__init__(config, models)
        self.branches = config.matches > 1
        self._indices: dict[int, _Index] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            self._indices[request.slot] = _Index(self.config)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        tokens, index = request.tokens, self._indices[request.slot]
        index.take_in(tokens)
        tree, paths = TreeBuilder(tokens[-1], budget.nodes), 0
        for position in index.matches(tokens):
            before = tree.size
            tree.add_path(tokens[position : position + budget.depth], self.name)
            # one that follows the same tokens as those before it is no path of its own
            paths += tree.size > before
            if paths == self.config.matches or not tree.room:
                break
        return tree.build().tree

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._indices.pop(request.slot, None)


class _Index:
    """Where each n-gram of one request's tokens is followed."""

    def __init__(self, config: PromptLookupConfig) -> None:
        self._config = config
        self._follows: dict[tuple[int, ...], deque[int]] = {}
        self._indexed = 0

    def take_in(self, tokens: Sequence[int]) -> None:
        """Note every n-gram that ends before the last token; of each, the latest occurrences are kept."""
        for end in range(self._indexed + 1, len(tokens)):
            for n in range(self._config.min_ngram, min(self._config.max_ngram, end) + 1):
                ngram = tuple(tokens[end - n : end])
                if ngram not in self._follows:
                    self._follows[ngram] = deque(maxlen=OCCURRENCES * self._config.matches)
                self._follows[ngram].append(end)
        self._indexed = max(self._indexed, len(tokens) - 1)

    def matches(self, tokens: Sequence[int]) -> Iterator[int]:
        """Where the last tokens were followed before: the longest n-gram first, the latest occurrence first."""
        seen: set[int] = set()
        for n in range(min(self._config.max_ngram, len(tokens)), self._config.min_ngram - 1, -1):
            for position in reversed(self._follows.get(tuple(tokens[-n:]), ())):
                if position not in seen:
                    seen.add(position)
                    yield position
