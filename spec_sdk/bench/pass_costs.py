"""What passes of a run's models cost here: kept from an earlier run, or measured through their executors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from spec_sdk.bench.cost_curve import PassCosts
from spec_sdk.bench.kept_costs import keep_costs, read_costs
from spec_sdk.bench.machine import machine_facts
from spec_sdk.bench.measuring import PassTimer, measure_curve
from spec_sdk.contracts.backend import Backend
from spec_sdk.model.executor import Executor
from spec_sdk.model.session import Session
from spec_sdk.plugin import declared
from spec_sdk.version import __version__

BUDGET_S = 4.0
"""Seconds for all points together; a pass that takes longer than predicted may end a little later."""
TARGET_SHARE = 0.6
"""Of them for the target, if there is a draft model too."""


class MeasuredCosts:
    """The cost source of a pipeline. The target is measured in plain passes, the draft model with its own runner."""

    def __init__(
        self,
        backend: Backend,
        target: Executor,
        draft: Session | None,
        catches_up: bool = True,
        longest_catch_up: int | None = None,
        weighs_time: bool = False,
    ) -> None:
        self.catches_up, self.longest_catch_up = catches_up, longest_catch_up
        self.weighs_time = weighs_time
        self._backend = backend
        self._target = target
        self._draft = draft
        self._known: PassCosts | None = None

    @property
    def expected_tokens(self) -> int | None:
        return self._backend.expected_tokens

    @property
    def unavailable(self) -> str | None:
        if self._backend.ranks.size > 1:
            return "several processes make a pass together, and the others follow the leader's requests only"
        if self._target.config.encoder is not None:
            return "a pass of an encoder-decoder model needs an encoder's input, such as speech"
        return None

    def facts(self) -> Mapping[str, Any]:
        """All that the costs depend on, as plain data."""
        models = [self._target] if self._draft is None else [self._target, self._draft.executor]
        return {
            "spec_sdk": __version__,
            "machine": machine_facts(self._backend.hardware),
            "backend": declared(self._backend),
            "models": [[repr(model.config), model.layers, str(model.dtype), model.form] for model in models],
            "runner": None if self._draft is None else dict(self._draft.runner.declaration()),
        }

    def kept(self) -> PassCosts | None:
        if self._known is None and self.unavailable is None:
            self._known = read_costs(self.facts())
        return self._known

    def measure(self) -> PassCosts | None:
        if self.unavailable is not None:
            return None
        clock = self._backend.clock()
        timer = PassTimer(self._target, clock, "tree")
        # the first pass on a machine compiles kernels, which may take longer than all that is measured
        timer(1, timer.contexts[0])
        began = time.perf_counter()
        share = 1.0 if self._draft is None else TARGET_SHARE
        target, draft = measure_curve(timer, timer.contexts, share * BUDGET_S), None
        if target is None:
            return None
        if self._draft is not None:
            timer = PassTimer(self._draft.executor, clock, "growing", self._draft.runner)
            left = BUDGET_S - (time.perf_counter() - began)
            draft = measure_curve(timer, timer.contexts, left)
            self._draft.runner.truncate(0, 0)
            if draft is None:
                return None
        self._known = PassCosts(target, draft, time.perf_counter() - began)
        keep_costs(self.facts(), self._known)
        return self._known

    def seconds_of_plain_pass(self) -> float:
        timer = PassTimer(self._target, self._backend.clock(), "tree")
        return min(timer(1, timer.contexts[0]) for _ in range(2))
