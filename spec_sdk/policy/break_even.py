"""For drafters that know how probable their guesses are: the price of every node, so that each cycle takes what pays.

The other policies choose a tree's shape from what was accepted on average. A drafter that estimates the probability of
every node can do better: it is told what a tree of so many nodes costs beyond a plain step, in tokens, and proposes the
tree with the largest expected gain. Where nothing is worth its price that is the root alone: a plain step.

Prices come from the past alone, so a budget is fixed before any random number of its cycle is drawn, and the
distribution of the output stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, CostSource, Policy, Request, option
from spec_sdk.policy.drafting_worth import DraftingWorth
from spec_sdk.policy.forced_token_costs import ForcedTokens
from spec_sdk.policy.learned import LONGEST_WAIT, PLAIN_SAMPLES
from spec_sdk.policy.obtained_costs import COSTS, obtain_costs
from spec_sdk.policy.prices import Prices
from spec_sdk.policy.stage_times import StageTimes
from spec_sdk.running_times import OUTLIER


@dataclass
class BreakEvenConfig:
    """Options of ``policy=break_even``."""

    max: int = option(12, "deepest draft, in tokens along one path", minimum=1)
    max_nodes: int = option(32, "most nodes of a cycle's tree, the root included", minimum=2)
    patience: float = option(
        1.5,
        "lost time, in plain steps, after which drafting pauses; earlier gains of up to four times it make up for it",
        above=0,
    )
    retry: int = option(
        16,
        f"plain steps of the first pause; doubled each time drafting did not pay, up to {LONGEST_WAIT}",
        minimum=1,
    )
    refresh: int = option(64, "cycles with a draft after which a plain step is timed anew", minimum=1)
    costs: str = option("auto", "what wider passes cost on this machine", choices=COSTS)


class LearnedByAll:
    """What a node costs, and whether guesses pay: learned by all requests of a run together."""

    def __init__(self, config: BreakEvenConfig) -> None:
        self.times = StageTimes()
        self.prices = Prices(self.times, config.max_nodes)
        self.worth = DraftingWorth(config.patience, config.retry)
        self.since_plain = 0
        self.weighs_time = False


class BreakEvenPolicy(Policy):
    """Tells the drafter what nodes cost; pauses while drafting does not pay. For drafters with probabilities of nodes.

    One that takes no notice of :attr:`Budget.node_costs`, or draws its tokens, grows the largest tree that is granted,
    as deep as its drafts paid on average.
    """

    name = "break_even"
    Config = BreakEvenConfig
    config: BreakEvenConfig

    def __init__(self, config: BreakEvenConfig, learned: LearnedByAll | None = None) -> None:
        super().__init__(config)
        self.learned = learned or LearnedByAll(config)
        self._unfed: int | None = None

    def for_request(self) -> BreakEvenPolicy:
        return type(self)(self.config, self.learned)

    def prepare(self, costs: CostSource, branches: bool) -> None:
        times, self.learned.weighs_time = self.learned.times, costs.weighs_time
        times.catches_up, times.longest_catch_up = costs.catches_up and not costs.weighs_time, costs.longest_catch_up
        known = obtain_costs(costs, self.config.costs)
        if known is not None:
            times.use(known)

    def budget(self, request: Request) -> Budget:
        learned, times, prices = self.learned, self.learned.times, self.learned.prices
        if times.plain.count < PLAIN_SAMPLES or learned.worth.pauses or learned.since_plain >= self.config.refresh:
            return Budget(0)
        unfed = len(request.tokens) if self._unfed is None else self._unfed
        remaining = request.max_new_tokens - request.new_tokens
        catch_up_s = times.catch_up(unfed) if times.knows_catching_up else 0.0
        if not learned.worth.is_worth(catch_up_s, remaining, times.plain.mean):
            return Budget(0)
        depth = self.config.max if learned.weighs_time else prices.deepest(self.config.max)
        return Budget(depth, self.config.max_nodes, prices.of_nodes, prices.of_a_level, prices.tokens_per_second)

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "prefill":
            self._observe_prefill(event)
            return
        learned, times, prices = self.learned, self.learned.times, self.learned.prices
        rows, forced, asked = event["tree_nodes"], ForcedTokens.of(event), event["budget"] > 0
        nodes, new = rows - forced.taken, len(event["tokens"]) - forced.emitted
        times.behind(event["prefix"])
        verify_s = event["verify_s"] + event["recover_s"]
        times.add_verify(forced.timed_rows(rows, times) if nodes == 1 else rows, verify_s)
        learned.since_plain = learned.since_plain + 1 if nodes > 1 else 0
        prices.observe_tree(rows, nodes, asked)
        unfed, self._unfed = self._unfed or 0, 1 if asked else (self._unfed or 0) + len(event["tokens"])
        if asked:
            # as passes usually take: one that the machine disturbed is no loss of drafting, nor of plain steps
            plain_s = times.plain.mean
            seconds = self._drafting(event["drafted"], unfed, event["draft_s"])
            seconds += times.verify(rows) - forced.seconds(times) if nodes > 1 else plain_s
            prices.observe_speed(new, seconds)
            prices.observe_levels(event["drafted"], event["accepted"])
            learned.worth.drafted(new * plain_s - seconds, plain_s)
        else:
            learned.worth.stepped_plainly(times.plain.mean)
        prices.renew()

    def _observe_prefill(self, event: Mapping[str, Any]) -> None:
        learned, started_s, tokens, kept = self.learned, event["drafter_s"], event["tokens"], event.get("kept", 0)
        learned.times.drafts_with_model = event["draft"] is not None
        # what is looked up hangs on the text; what a model guesses, and what that takes, is much the same for all texts
        may_gain = learned.worth.hopes(learned.times.plain.mean)
        if may_gain or learned.weighs_time or not learned.times.drafts_with_model:
            learned.worth.forgive()
        learned.times.add_prefill(tokens - kept, event["seconds"] - (started_s or 0.0))
        self._unfed = tokens + 1
        if started_s is not None:
            self._unfed = 1
            learned.times.add_start(tokens, kept, started_s)
            learned.worth.paid(started_s)

    def _drafting(self, drafted: int, unfed: int, draft_s: float) -> float:
        """The seconds of a call for a draft without those of catching up, which may be one's inside another drafter."""
        times = self.learned.times
        usual_s = times.draft(drafted) if drafted else times.silence.mean
        if not times.is_behind(unfed):
            times.add_draft(drafted, 1, drafted, unfed, draft_s)
            return min(draft_s, max(OUTLIER * usual_s, times.plain.mean))
        caught_up_s = times.add_catching_up(unfed, draft_s, usual_s)
        self.learned.worth.paid(caught_up_s)
        return draft_s - caught_up_s
