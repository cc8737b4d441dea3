"""The contract of a policy: how much to speculate next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spec_sdk.bench.cost_curve import PassCosts
from spec_sdk.contracts.request import Budget, Request
from spec_sdk.errors import of_request
from spec_sdk.plugin import Plugin


class CostSource(Protocol):
    """What passes of the run's models cost on this machine; nothing is read or measured before it is asked."""

    @property
    def expected_tokens(self) -> int | None:
        """About how many tokens the run will make; None where nobody knows."""

    @property
    def catches_up(self) -> bool:
        """Whether the run's drafter must catch up with the tokens that it was not asked about: see
        :attr:`Drafter.catches_up`.
        """

    @property
    def longest_catch_up(self) -> int | None:
        """Of how many of them its model reads at most: see :attr:`Drafter.longest_catch_up`."""

    @property
    def weighs_time(self) -> bool:
        """Whether the run's drafter weighs by itself what drafting takes: see :attr:`Drafter.weighs_time`."""

    @property
    def unavailable(self) -> str | None:
        """Why passes cannot be measured here; None if they can."""

    def kept(self) -> PassCosts | None:
        """What was measured before, on this machine with these models; None if nothing was. Takes milliseconds."""

    def measure(self) -> PassCosts | None:
        """Measure it now, in less than 5 seconds, and keep it; None if a pass is too slow for that or
        :attr:`unavailable` says why not.
        """

    def seconds_of_plain_pass(self) -> float:
        """What a plain step of the target takes, from two of them. Not to be asked where it is unavailable."""


class Policy(Plugin, ABC):
    """How much to speculate next."""

    kind = "policy"

    def __init__(self, config: Any) -> None:
        self.config = config

    def prepare(self, costs: CostSource, branches: bool) -> None:
        """Called when the run's models are loaded, before any request, again for every engine of a run.

        ``branches``: whether the drafter's trees may branch. What a policy does not ask of ``costs`` costs nothing.
        """

    @abstractmethod
    def budget(self, request: Request) -> Budget:
        """Called before each cycle. Depth 0 makes a plain decoding step: the drafter is not called.

        Also called once after the target's prefill: 0 there leaves the drafter's own prefill for later. So it must not
        count its calls; what a policy learns, it learns in ``observe``. It may depend on anything that is past, and
        on no random number that is yet to be drawn: then adapting leaves the distribution of the output as it is.
        """

    def budgets(self, requests: Sequence[Request], policies: Sequence[Policy]) -> list[Budget]:
        """The budgets of requests that make a step together, each of which has a policy (:meth:`for_request`).

        The run's policy is asked. By default every request's own says what it would get alone. An error ends all of
        them; RequestError, which the default makes of what :meth:`budget` raises, the one that it names.
        """
        return [
            of_request(request.id, policy.budget, request) for policy, request in zip(policies, requests, strict=True)
        ]

    def observe(self, event: Mapping[str, Any]) -> None:
        """The ``prefill`` event, then each ``cycle`` event as it ends (see events.py), for policies that adapt."""

    def for_request(self) -> Policy:
        """The policy of one request. Those of a run may share what they learned; by default they share nothing."""
        return type(self)(self.config)
