"""What drafters that guess without a model share: a tree of the most probable guesses, and rates learned as they go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens, option
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.guessing import Guesser


@dataclass
class RetrievalConfig:
    """Options of all drafters that guess without a model."""

    min_probability: float = option(
        0.05, "a token that is reached and accepted less probably is not drafted", minimum=0, below=1
    )
    keep_across_prompts: bool = option(False, "what one answer taught is used for the next ones of the same engine")


class RetrievalDrafter(Drafter):
    """Drafts the tree of the most probable guesses. They are chosen, not drawn, so any verifier stays lossless."""

    config: Any
    branches = True

    def __init__(self, config: Any, models: Models) -> None:
        super().__init__(config, models)
        self.sources = self.make_sources()
        self.target_top_k = max(sources.target_top_k for sources in self.sources)
        self._guessers: dict[int, Guesser] = {}

    @abstractmethod
    def make_sources(self) -> list[Sources]:
        """Where the guesses come from."""

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            guesser = self._guessers[request.slot] = self.new_guesser(request)
            guesser.read(request.tokens)

    def new_guesser(self, request: Request) -> Guesser:
        """What guesses for a request that begins."""
        temperature = request.sampler.params.temperature
        return Guesser([sources.new(temperature) for sources in self.sources])

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        guesser = self._guessers[request.slot]
        return guesser.grow(request.pending_token, budget, self.config.min_probability, self.name).build().tree

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        for request, tree, top in zip(requests, trees, tops, strict=True):
            self._guessers[request.slot].record(tree, top, request.tokens)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        for request in requests:
            self._guessers[request.slot].learn(request.tokens)

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        for request in requests:
            self._guessers[request.slot].read(request.tokens)

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if self._guessers.pop(request.slot, None) is not None:
                for sources in self.sources:
                    sources.keep(request.tokens[request.prompt_length :])
