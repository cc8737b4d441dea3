"""A drafter with a model inside another drafter: started when it is first asked, asked where that is worth its time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.acceptance_rates import AcceptanceRates
from spec_sdk_drafters.model_source import ModelSource, UsualRates, prior
from spec_sdk_drafters.model_worth import ModelWorth

UNKNOWN_SHARE = 0.1
"""What a pass of a drafter takes of one of the target's, where nothing tells its layers."""
HEAD_SHARE = 0.05
"""What its output head and its tree take besides its layers."""


@dataclass(frozen=True)
class Proposal:
    """A tree that the model proposed. ``drawn``: whether any of its tokens was drawn at random. ``unseen``: tokens that
    it had to catch up with. ``seconds``: this request's share of the call.
    """

    tree: TokenTree
    drawn: bool
    unseen: int
    seconds: float


@dataclass(frozen=True)
class Asked:
    """A question whose worth is not known yet: what was proposed, and the tree that there would have been without it.

    ``price``: what more nodes cost, in tokens.
    """

    surest: float
    proposal: Proposal
    without: TokenTree
    price: float
    tokens_per_second: float


class AskedModel:
    """Starts ``drafter`` for requests that ask it, and keeps what it must be told until then.

    What asking is worth is learned by all requests together, and looked at only where a budget gives time a price:
    without prices the model is always asked, and a request's tree depends on its own text alone.
    """

    def __init__(self, drafter: Drafter, target_layers: int) -> None:
        self.drafter = drafter
        session = drafter.draft_session
        share = UNKNOWN_SHARE if session is None else session.executor.layers / target_layers + HEAD_SHARE
        self.worth = ModelWorth(share)
        self._usual = AcceptanceRates(prior)
        self._sources: dict[int, ModelSource] = {}
        self._seen: dict[int, int] = {}
        self._started: set[int] = set()
        self._hidden: dict[int, list[Hidden]] = {}
        self._asked: dict[int, Asked] = {}
        self._drew: dict[bool, bool] = {True: False, False: True}

    def source_of(self, request: Request) -> ModelSource:
        """Its guesses for a request that begins."""
        source = self._sources[request.slot] = ModelSource(UsualRates(self._usual))
        return source

    def begin(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None) -> None:
        """Requests begin; the drafter hears of them when it is first asked."""
        for i, request in enumerate(requests):
            self._started.discard(request.slot)
            self._asked.pop(request.slot, None)
            self._seen[request.slot] = 0
            self._hidden[request.slot] = [] if prompt_hidden is None else [prompt_hidden[i]]

    def is_worth_asking(self, request: Request, surest: float, budget: Budget) -> bool:
        """``surest``: how probable the best guess without the model is."""
        self._sources[request.slot].rates.go_by_usual = budget.tokens_per_second > 0
        remaining = request.max_new_tokens - request.new_tokens
        return self.worth.asks(surest, self._unseen(request), remaining, budget.tokens_per_second)

    def draws(self, request: Request) -> bool:
        """Whether its tokens are drawn at random, as those of the last tree were. Sampled ones may be, at first."""
        return self._drew[request.sampler.greedy]

    def propose(
        self, requests: Sequence[Request], budgets: Sequence[Budget], surest: Sequence[float]
    ) -> list[Proposal]:
        """Its trees, of at most the budgets' nodes. Their guesses are the sources' from now on."""
        late = [request for request in requests if request.slot not in self._started]
        began, unseen = time.perf_counter(), [self._unseen(request) for request in requests]
        if late:
            taps = self.drafter.taps
            self.drafter.start(
                late, [joined(self._hidden.pop(request.slot), taps) for request in late] if taps else None
            )
            self._started |= {request.slot for request in late}
        granted = [self._granted(*pair) for pair in zip(requests, budgets, surest, strict=True)]
        trees = self.drafter.propose(requests, granted)
        seconds = (time.perf_counter() - began) / len(requests)
        proposals = []
        for request, tree, unfed in zip(requests, trees, unseen, strict=True):
            drawn = any(draw.kind != "chosen" for draws in tree.draws_N for draw in draws)
            if tree.size > 1:
                self._drew[request.sampler.greedy] = drawn
            self._seen[request.slot] = len(request.tokens)
            source = self._sources[request.slot]
            source.propose(tree)
            self.worth.observe_reach(*source.worth_of_reach)
            proposals.append(Proposal(tree, drawn, unfed, seconds))
        return proposals

    def asked(
        self,
        request: Request,
        surest: float,
        proposal: Proposal,
        without: TokenTree,
        tree: TokenTree,
        budget: Budget,
    ) -> None:
        """``tree`` is scored where it would have been ``without``, had the model not been asked."""
        costs = budget.node_costs
        price = costs[tree.size - 1] - costs[without.size - 1] if costs else 0.0
        self._asked[request.slot] = Asked(surest, proposal, without, price, budget.tokens_per_second)

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        count = self.drafter.target_top_k
        told = [i for i, request in enumerate(requests) if request.slot in self._started]
        if count and told:
            first = [tops[i].first(count) for i in told]
            self.drafter.observe_scores([requests[i] for i in told], [trees[i] for i in told], first)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        told = [i for i, request in enumerate(requests) if request.slot in self._started]
        if told:
            hidden = None if path_hidden is None else [path_hidden[i] for i in told]
            self.drafter.observe([requests[i] for i in told], [committed[i] for i in told], hidden)
        for i, request in enumerate(requests):
            if request.slot in self._hidden and path_hidden is not None:
                self._hidden[request.slot].append(path_hidden[i])
            question = self._asked.pop(request.slot, None)
            if question is not None:
                gain = len(committed[i]) - 1 - accepted(question.without, committed[i]) - question.price
                levels, proposal = max(1, question.proposal.tree.depth), question.proposal
                self.worth.observe(
                    question.surest, gain, levels, proposal.unseen, proposal.seconds, question.tokens_per_second
                )

    def finish(self, requests: Sequence[Request]) -> None:
        started = [request for request in requests if request.slot in self._started]
        if started:
            self.drafter.finish(started)
        for request in requests:
            self._started.discard(request.slot)
            for kept in (self._sources, self._seen, self._hidden, self._asked):
                kept.pop(request.slot, None)

    def _unseen(self, request: Request) -> int:
        """Tokens that the drafter would have to catch up with."""
        return len(request.tokens) - self._seen[request.slot] if self.drafter.catches_up else 0

    def _granted(self, request: Request, budget: Budget, surest: float) -> Budget:
        """What the drafter is granted: draws are as deep as pays by past acceptance, before any of them is made."""
        rate = budget.tokens_per_second
        level_cost, depth = self.worth.level_cost(rate), min(budget.depth, budget.nodes - 1)
        if rate and self.draws(request):
            depth = self._depth_of_draws(self._sources[request.slot], budget, level_cost, depth, surest)
        return Budget(depth, budget.nodes, level_cost=level_cost / self.worth.reach_worth, tokens_per_second=rate)

    def _depth_of_draws(
        self, source: ModelSource, budget: Budget, level_cost: float, deepest: int, surest: float
    ) -> int:
        expected = best = 0.0
        reached, depth = 1 - surest, 1
        for level in range(1, deepest + 1):
            reached *= source.rate_of_draws(level)
            expected += reached
            nodes = min(level + 1, len(budget.node_costs))
            value = expected - level * level_cost - (budget.node_costs[nodes - 1] if nodes else 0.0)
            if value > best:
                best, depth = value, level
        return depth


def accepted(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How many of ``tokens``, which follow the root, the tree has on a path."""
    node = 0
    for count, token in enumerate(tokens):
        child = next((draw.node for draw in tree.draws_N[node] if tree.token_N[draw.node] == token), None)
        if child is None:
            return count
        node = child
    return len(tokens)


def joined(noted: Sequence[Hidden], taps: Sequence[int]) -> Hidden:
    """States of successive positions, one below the other."""
    known = [hidden for hidden in noted if hidden]
    return {layer: torch.cat([hidden[layer] for hidden in known]) for layer in taps} if known else {}
