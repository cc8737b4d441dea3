"""Retrieval, recycling and, where they are unsure, a draft model: one tree of the most probable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens, option
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.merged import member_of, merge
from spec_sdk_drafters.recycling_table import RecyclingSources
from spec_sdk_drafters.retrieval import RetrievalDrafter
from spec_sdk_drafters.suffix import SuffixConfig
from spec_sdk_drafters.suffix_source import SuffixSources


@dataclass
class MixedConfig(SuffixConfig):
    """Options of ``drafter=mixed``."""

    successors: int = option(
        8,
        "the target's most probable tokens that are kept after every token",
        minimum=0,
        means={0: "no token recycling"},
    )
    model: dict[str, Any] | None = option(
        None, "a drafter for where nothing is sure, as {name: draft_model, option: value}", means={None: "none"}
    )
    model_below: float = option(
        0.5, "the model is asked where the best first guess is less probable", minimum=0, maximum=1
    )


class MixedDrafter(RetrievalDrafter):
    """Drafts the best guesses of a suffix automaton and token recycling, and asks a model where they are unsure.

    Whether the model is asked, and for how large a tree, depends on the text alone. All of its draws are in the tree:
    so a rejected draw tells the verifier what it told the model, and the distribution of the output stays.
    """

    name = "mixed"
    Config = MixedConfig
    config: MixedConfig

    def __init__(self, config: MixedConfig, models: Models) -> None:
        super().__init__(config, models)
        self.model: Drafter | None = None
        self._asked: set[int] = set()
        if config.model is not None:
            self.model = model = member_of(config.model, "drafter.model", models)
            self.taps, self.draft_name, self.draft_session = model.taps, model.draft_name, model.draft_session
            self.every_rank = model.every_rank
            self.target_top_k = max(self.target_top_k, model.target_top_k)

    def make_sources(self) -> list[Sources]:
        config = self.config
        found: list[Sources] = [SuffixSources(config.keep_across_prompts, config.max_kept_tokens)]
        return found + [RecyclingSources(config.keep_across_prompts, config.successors)] * (config.successors > 0)

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        super().start(requests, prompt_hidden)
        # without taps it is started when it is first asked: its prefill is not paid for where it never is
        if self.model is not None and self.model.taps:
            self._start_model(requests, prompt_hidden)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        asked = self._unsure(requests)
        # half of the nodes at most: the model gets the others, fixed before it draws
        own = [
            replace(budget, nodes=1 + (budget.nodes - 1) // 2) if i in asked else budget
            for i, budget in enumerate(budgets)
        ]
        trees = super().propose(requests, own)
        if self.model is None or not asked:
            return trees
        self._start_model([requests[i] for i in asked if requests[i].slot not in self._asked], None)
        nodes = [budgets[i].nodes - (trees[i].size - 1) for i in asked]
        granted = [Budget(min(budgets[i].depth, left - 1), left) for i, left in zip(asked, nodes, strict=True)]
        for i, tree in zip(asked, self.model.propose([requests[i] for i in asked], granted), strict=True):
            trees[i] = merge([tree, trees[i]])
        return trees

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        count = self.model.target_top_k if self.model is not None else 0
        if self.model is not None and count:
            started = [i for i, request in enumerate(requests) if request.slot in self._asked]
            self.model.observe_scores(
                [requests[i] for i in started], [trees[i] for i in started], [tops[i].first(count) for i in started]
            )
        super().observe_scores(requests, trees, tops)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        super().observe(requests, committed, path_hidden)
        started = [i for i, request in enumerate(requests) if request.slot in self._asked]
        if self.model is not None and started:
            hidden = None if path_hidden is None else [path_hidden[i] for i in started]
            self.model.observe([requests[i] for i in started], [committed[i] for i in started], hidden)

    def finish(self, requests: Sequence[Request]) -> None:
        super().finish(requests)
        started = [request for request in requests if request.slot in self._asked]
        if self.model is not None and started:
            self.model.finish(started)
        self._asked -= {request.slot for request in requests}

    def _unsure(self, requests: Sequence[Request]) -> list[int]:
        """Those for whom the model is asked."""
        if self.model is None:
            return []
        below = self.config.model_below
        return [i for i, request in enumerate(requests) if self._guessers[request.slot].surest() < below]

    def _start_model(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None) -> None:
        if self.model is not None and requests:
            self.model.start(requests, prompt_hidden)
            self._asked |= {request.slot for request in requests}
