"""Retrieval, recycling and, where it is worth its time, a drafter with a model: one tree of the best guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens, option
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.asked_model import AskedModel
from spec_sdk_drafters.guess_source import Sources
from spec_sdk_drafters.guessing import Guesser
from spec_sdk_drafters.merged import member_of, merge
from spec_sdk_drafters.recycling_table import RecyclingSources
from spec_sdk_drafters.retrieval import RetrievalDrafter
from spec_sdk_drafters.suffix import SuffixConfig, text_sources


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
        None, "a drafter to ask where it is worth its time, as {name: draft_model, option: value}", means={None: "none"}
    )


class MixedDrafter(RetrievalDrafter):
    """Drafts the most probable guesses of a suffix automaton, token recycling and, where that pays, a model.

    Whether the model is asked, and for how much, depends on what is past alone: the text, and what asking gained and
    took before. Tokens that the model chose compete with the other guesses, node by node. Tokens that it drew are all
    in the tree, and the guesses beside them were fixed before: so a rejected draw tells the verifier what it told the
    model, and the distribution of the output stays. What the model has to catch up with is weighed here as well, so no
    policy need.
    """

    name = "mixed"
    weighs_time = True
    Config = MixedConfig
    config: MixedConfig

    def __init__(self, config: MixedConfig, models: Models) -> None:
        super().__init__(config, models)
        self.model: AskedModel | None = None
        if config.model is not None:
            drafter: Drafter = member_of(config.model, "drafter.model", models)
            self.model = AskedModel(drafter, models.target.executor)
            self.taps, self.draft_name, self.draft_session = drafter.taps, drafter.draft_name, drafter.draft_session
            self.drafts_ahead = drafter.drafts_ahead
            self.every_rank, self.target_top_k = drafter.every_rank, max(self.target_top_k, drafter.target_top_k)

    def make_sources(self) -> list[Sources]:
        config = self.config
        found = text_sources(config, self.models)
        return found + [RecyclingSources(config.keep_across_prompts, config.successors)] * (config.successors > 0)

    def new_guesser(self, request: Request) -> Guesser:
        guesser = super().new_guesser(request)
        if self.model is not None:
            guesser.sources = [self.model.source_of(request), *guesser.sources]
        return guesser

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        if self.model is not None:
            self.model.begin(requests, prompt_hidden)
        super().start(requests, prompt_hidden)

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        model = self.model
        if model is None:
            return super().propose(requests, budgets)
        own = [self._guessers[request.slot] for request in requests]
        unpaused = [i for i in range(len(own)) if model.may_ask(requests[i], budgets[i])]
        surest = {i: own[i].surest() for i in unpaused}
        asked = [i for i in unpaused if model.is_worth_asking(requests[i], surest[i], budgets[i])]
        # beside draws, half of the nodes at most: the model gets the others, fixed before it draws
        shares = [
            replace(budget, nodes=1 + (budget.nodes - 1) // 2) if i in asked and model.draws(requests[i]) else budget
            for i, budget in enumerate(budgets)
        ]
        trees = super().propose(requests, shares)
        if not asked:
            return trees
        granted = [beside(trees[i], budgets[i]) if model.draws(requests[i]) else budgets[i] for i in asked]
        proposals = model.propose([requests[i] for i in asked], granted, [surest[i] for i in asked])
        for i, proposal in zip(asked, proposals, strict=True):
            without = trees[i]
            if proposal.drawn:
                # guesses may have taken the room of draws that were not foreseen
                fits = proposal.tree.size + without.size - 1 <= budgets[i].nodes
                trees[i] = merge([proposal.tree, without] if fits else [proposal.tree], self.name)
            else:
                trees[i] = self.propose_one(requests[i], budgets[i])
            model.asked(requests[i], surest[i], proposal, without, trees[i], budgets[i])
        return trees

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        if self.model is not None:
            self.model.observe_scores(requests, trees, tops)
        super().observe_scores(requests, trees, tops)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        super().observe(requests, committed, path_hidden)
        if self.model is not None:
            self.model.observe(requests, committed, path_hidden)

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        super().observe_forced(requests, forced)
        if self.model is not None:
            self.model.observe_forced(requests, forced)

    def finish(self, requests: Sequence[Request]) -> None:
        super().finish(requests)
        if self.model is not None:
            self.model.finish(requests)


def beside(tree: TokenTree, budget: Budget) -> Budget:
    """What ``tree`` leaves of a budget for a tree with the same root: fewer nodes, at the price of further ones."""
    costs = budget.node_costs[tree.size - 1 :]
    return replace(budget, nodes=budget.nodes - (tree.size - 1), node_costs=tuple(cost - costs[0] for cost in costs))
