"""A drafter with a model inside another drafter: started when it is first asked, asked where that is worth its time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Budget, Drafter, Executor, Hidden, Request, TopTokens
from spec_sdk.tree import TokenTree
from spec_sdk_drafters.acceptance_rates import RatesByTemperature, temperature_class
from spec_sdk_drafters.model_source import ModelSource, UsualRates, prior
from spec_sdk_drafters.model_worth import ModelWorth
from spec_sdk_drafters.unfed_states import joined

UNKNOWN_SHARE = 0.1
"""What a pass of a drafter takes of one of the target's, where nothing tells its size."""
HEAD_SHARE = 0.05
"""What its output head and its tree take besides its layers."""


WIDEST_DRAWN = 4
"""More paths of draws are not granted."""


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

    def __init__(self, drafter: Drafter, target: Executor) -> None:
        self.drafter = drafter
        session = drafter.draft_session
        self.share = UNKNOWN_SHARE if session is None else share_of_pass(session.executor, target)
        self._usual = RatesByTemperature(prior, keep=True)
        self._worth: dict[float, ModelWorth] = {}
        self._sources: dict[int, ModelSource] = {}
        self._seen: dict[int, int] = {}
        self._started: set[int] = set()
        self._hidden: dict[int, list[Hidden]] = {}
        self._asked: dict[int, Asked] = {}
        self._drew: dict[int, bool] = {}

    def source_of(self, request: Request) -> ModelSource:
        """Its guesses for a request that begins."""
        usual = self._usual.of(request.sampler.params.temperature)
        source = self._sources[request.slot] = ModelSource(UsualRates(usual), self.drafter.name)
        return source

    def begin(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None) -> None:
        """Requests begin; the drafter hears of them when it is first asked."""
        for i, request in enumerate(requests):
            self._started.discard(request.slot)
            self._asked.pop(request.slot, None)
            self._drew.pop(request.slot, None)
            self._seen[request.slot] = 0
            self._hidden[request.slot] = [] if prompt_hidden is None else [prompt_hidden[i]]

    def may_ask(self, request: Request, budget: Budget) -> bool:
        """Whether to ask in this cycle if the guesses are unsure enough."""
        self._sources[request.slot].rates.go_by_usual = budget.tokens_per_second > 0
        return self.worth_for(request).may_ask(budget.tokens_per_second)

    def is_worth_asking(self, request: Request, surest: float, budget: Budget) -> bool:
        """``surest``: how probable the best guess without the model is."""
        remaining = request.max_new_tokens - request.new_tokens
        return self.worth_for(request).asks(surest, self._unseen(request), remaining, budget.tokens_per_second)

    def worth_for(self, request: Request) -> ModelWorth:
        """What asking is worth to requests of this temperature."""
        return self._worth.setdefault(temperature_class(request.sampler.params.temperature), ModelWorth(self.share))

    def draws(self, request: Request) -> bool:
        """Whether its tokens may be drawn at random: some were before, or the answer is sampled and none was proposed
        yet.
        """
        return self._drew.get(request.slot, not request.sampler.greedy)

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
                self._drew[request.slot] = drawn or self._drew.get(request.slot, False)
            self._seen[request.slot] = len(request.tokens)
            source = self._sources[request.slot]
            source.propose(tree)
            self.worth_for(request).observe_reach(*source.worth_of_reach)
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
            if self.drafter.taps and request.slot in self._hidden and path_hidden is not None:
                self._hidden[request.slot].append(path_hidden[i])
            question = self._asked.pop(request.slot, None)
            if question is not None:
                gain = len(committed[i]) - 1 - accepted(question.without, committed[i]) - question.price
                levels, proposal = max(1, question.proposal.tree.depth), question.proposal
                self.worth_for(request).observe(
                    question.surest, gain, levels, proposal.unseen, proposal.seconds, question.tokens_per_second
                )

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        told = [i for i, request in enumerate(requests) if request.slot in self._started]
        if told:
            self.drafter.observe_forced([requests[i] for i in told], [forced[i] for i in told])

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
        if not self.drafter.catches_up:
            return 0
        unseen, longest = len(request.tokens) - self._seen[request.slot], self.drafter.longest_catch_up
        return unseen if longest is None else min(unseen, longest)

    def _granted(self, request: Request, budget: Budget, surest: float) -> Budget:
        """What the drafter is granted. A tree of draws is as large as pays by the past, before any of them is made."""
        rate = budget.tokens_per_second
        worth = self.worth_for(request)
        level_cost, depth, nodes = worth.level_cost(rate), min(budget.depth, budget.nodes - 1), budget.nodes
        if rate and self.draws(request):
            source = self._sources[request.slot]
            depth, nodes = shape_of_draws(source, depth, budget, level_cost, 1 - surest)
        return Budget(depth, nodes, level_cost=level_cost / worth.reach_worth, tokens_per_second=rate)


def shape_of_draws(
    source: ModelSource, deepest: int, budget: Budget, level_cost: float, unguessed: float
) -> tuple[int, int]:
    """Depth and nodes of the tree of paths that part at the root with the largest gain, by past acceptance.

    ``unguessed``: how probably the next token is none that is guessed without the model.
    """
    best, shape = -math.inf, (1, 2)
    below, after = 0.0, 1.0
    for depth in range(1, deepest + 1):
        if depth > 1:
            after *= source.rate_of_draw(depth, 0)
            below += after
        first = 0.0
        for width in range(1, min(WIDEST_DRAWN, (budget.nodes - 1) // depth) + 1):
            first += source.rate_of_draw(1, width - 1)
            nodes = 1 + width * depth
            price = budget.node_costs[min(nodes, len(budget.node_costs)) - 1] if budget.node_costs else 0.0
            gain = unguessed * first * (1 + below) - depth * level_cost - price
            if gain > best:
                best, shape = gain, (depth, nodes)
    return shape


def share_of_pass(draft: Executor, target: Executor) -> float:
    """About what a pass of a draft model takes of one of the target's: by their matrices, which are read in each."""

    def read(executor: Executor) -> float:
        per_layer = executor.config.layer_parameters
        return executor.layers * sum(per_layer) / len(per_layer)

    return read(draft) / read(target) + HEAD_SHARE


def accepted(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How many of ``tokens``, which follow the root, the tree has on a path."""
    return len(tree.path_along(tokens)) - 1
