"""A policy: drafting rests where nothing is accepted for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import Budget, Policy, Request, option


@dataclass
class RestingConfig:
    """Options of ``policy=resting``."""

    depth: int = option(4, "most tokens to draft on a path", minimum=1)
    misses: int = option(3, "cycles in a row of which nothing was accepted, after which drafting rests", minimum=1)
    rest: int = option(8, "plain steps of a rest", minimum=1)


class Resting(Policy):
    """Drafts to one depth, and rests after some cycles in a row of which nothing was accepted."""

    name = "resting"
    Config = RestingConfig
    config: RestingConfig

    def __init__(self, config: RestingConfig) -> None:
        super().__init__(config)
        self._missed = self._resting = 0

    def budget(self, request: Request) -> Budget:
        return Budget(0 if self._resting else self.config.depth)

    def observe(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "cycle":
            return
        if self._resting:
            self._resting -= 1
        elif event["accepted"]:
            self._missed = 0
        else:
            self._missed += 1
            if self._missed == self.config.misses:
                self._missed, self._resting = 0, self.config.rest
