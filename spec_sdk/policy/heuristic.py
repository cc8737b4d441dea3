"""The γ heuristic of the sampling-kernels paper (Wagner et al. 2024, its experimental set-up): deeper after success.

It is the rule of transformers' assisted generation. It never stops speculating, so it can be slower than plain
decoding; ``adaptive`` is the policy that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Policy, Request
from spec_sdk.errors import UserError


@dataclass
class HeuristicConfig:
    """Depths, in tokens along one path.

    ``start``: depth of a request's first cycle.
    ``grow``: added when all that was drafted was accepted.
    ``shrink``: taken off otherwise.
    ``min``, ``max``: limits.
    """

    start: int = 5
    grow: int = 2
    shrink: int = 1
    min: int = 1
    max: int = 20


class HeuristicPolicy(Policy):
    """Two deeper when everything was accepted, one shallower otherwise; a cycle without a draft changes nothing."""

    name = "heuristic"
    Config = HeuristicConfig
    config: HeuristicConfig

    def __init__(self, config: HeuristicConfig) -> None:
        for option in ("grow", "shrink"):
            if getattr(config, option) < 0:
                raise UserError(f"policy.{option}: {getattr(config, option)} must be 0 or more")
        if config.min < 1:
            raise UserError(f"policy.min: {config.min} must be 1 or more")
        if config.min > config.max:
            raise UserError(f"policy.min: {config.min} must be at most policy.max, {config.max}")
        if not config.min <= config.start <= config.max:
            limits = f"policy.min, {config.min}, and policy.max, {config.max}"
            raise UserError(f"policy.start: {config.start} must lie between {limits}")
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
