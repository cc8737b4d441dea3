"""The contract of a policy: how much to speculate next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from spec_sdk.contracts.request import Budget, Request
from spec_sdk.plugin import Plugin


class Policy(Plugin, ABC):
    """How much to speculate next."""

    kind = "policy"

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def budget(self, request: Request) -> Budget:
        """Called before each cycle. Depth 0 makes a plain decoding step: the drafter is not called.

        Also called once after the target's prefill: 0 there leaves the drafter's own prefill for later. So it must not
        count its calls; what a policy learns, it learns in ``observe``. It may depend on anything that is past, and
        on no random number that is yet to be drawn: then adapting leaves the law of the output as it is.
        """

    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        """The budgets of requests that make a step together, each of which has a policy (:meth:`for_request`).

        The run's policy is asked. By default every request's own says what it would get alone.
        """
        return [policy.budget(request) for policy, request in zip(policies, requests, strict=True)]

    def observe(self, event: Mapping[str, Any]) -> None:
        """The ``prefill`` event, then each ``cycle`` event as it ends (see events.py), for policies that adapt."""

    def for_request(self) -> Policy:
        """The policy of one request. Those of a run may share what they learned; by default they share nothing."""
        return type(self)(self.config)
