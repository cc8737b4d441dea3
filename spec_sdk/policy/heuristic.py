"""The γ heuristic of the sampling-kernels paper (Wagner et al. 2024, its experimental set-up): deeper after success.

It is the rule of transformers' assisted generation. It never stops speculating, so it can be slower than plain
decoding; ``adaptive`` is the policy that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Policy, Request, option
from spec_sdk.errors import UserError


@dataclass
class HeuristicConfig:
    """Depths, in tokens along one path."""

    start: int = option(5, "tokens drafted along one path in a request's first cycle", minimum=1)
    grow: int = option(2, "deeper by so many after a cycle in which all drafted tokens were accepted", minimum=0)
    shrink: int = option(1, "shallower by so many after any other; a cycle without a draft changes nothing", minimum=0)
    min: int = option(1, "the least depth", minimum=1)
    max: int = option(20, "the largest depth", minimum=1)

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise UserError(f"policy.min: {self.min} must be at most policy.max, {self.max}")
        if not self.min <= self.start <= self.max:
            limits = f"policy.min, {self.min}, and policy.max, {self.max}"
            raise UserError(f"policy.start: {self.start} must lie between {limits}")


class HeuristicPolicy(Policy):
    """Two deeper when everything was accepted, one shallower otherwise; a cycle without a draft changes nothing."""

    name = "heuristic"
    Config = HeuristicConfig
    config: HeuristicConfig

    def __init__(self, config: HeuristicConfig) -> None:
        super().__init__(config)
        self._depth = config.start

    def budget(self, request: Request) -> Budget:
        return Budget(self._depth)

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "cycle" or not event["drafted"]:
            return
        all_accepted = event["accepted"] == event["drafted"]
        depth = self._depth + (self.config.grow if all_accepted else -self.config.shrink)
        self._depth = min(max(depth, self.config.min), self.config.max)
