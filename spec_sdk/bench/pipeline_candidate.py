"""A pipeline of ours as a candidate of a benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spec_sdk.bench.candidate import Ask, Candidate, Facts, Measured
from spec_sdk.bench.cycle_counts import attention_of, depths_of, passes_of
from spec_sdk.bench.memory import PeakBytes
from spec_sdk.compiled_constraints import Given
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.metrics import STAGES
from spec_sdk.pipeline import Pipeline
from spec_sdk.sampling_params import SamplingParams

GREEDY = SamplingParams()


class PipelineCandidate(Candidate):
    """Answers through the engine of tokens: what is timed is the steps, and no making of texts.

    ``make``: builds the pipeline with so many slots; every round gets a new one, since drafters and policies learn from
    what they answered. ``overrides`` and ``plugins``: for the record. ``threshold``: of the attention verifier, if
    there is one. ``constraint``: that all answers are held to. Raises UserError if it cannot be compiled.
    """

    kind = "pipeline"

    def __init__(
        self,
        name: str,
        make: Callable[[int], Pipeline],
        overrides: Sequence[str] = (),
        plugins: Mapping[str, Any] | None = None,
        threshold: float | None = None,
        constraint: Given | None = None,
    ) -> None:
        super().__init__(name)
        self.pipeline = make(1)
        self._make = make
        self._overrides = tuple(overrides)
        self._plugins = plugins
        self._threshold = threshold
        self._matcher = self.pipeline.constraints.of(constraint)
        self._peak = PeakBytes(self.pipeline.backend.device)
        self._number = 0

    def facts(self) -> Facts:
        return Facts(
            self.pipeline.name,
            self._overrides,
            self._plugins,
            self.pipeline.guarantee_under(GREEDY),
            self.pipeline.draft_name,
            {"memory": dict(self.pipeline.memory), "compiled": dict(self.pipeline.backend.compiled)},
        )

    def refusal(self, temperature: float, batch_size: int) -> str | None:
        try:
            self.pipeline.verifier.check(SamplingParams(temperature=temperature))
        except UserError as error:
            return str(error)
        return None

    def begin(self, batch_size: int) -> None:
        if self._number or self.pipeline.slots != batch_size:
            self.pipeline = self._make(batch_size)
            self._number = 0

    def answer(self, ask: Ask) -> Measured:
        (measured,) = self.answer_together([ask])
        if isinstance(measured, Exception):
            raise measured
        return measured

    def answer_together(self, asks: Sequence[Ask]) -> list[Measured | Exception]:
        engine = self.pipeline.engine
        self._peak.forget()
        began = time.perf_counter()
        served = [_Served(began) for _ in asks]
        numbers: dict[int, _Served] = {}
        try:
            for ask, each in zip(asks, served, strict=True):
                try:
                    numbers[engine.add(self._request(ask, each))] = each
                except UserError as error:
                    each.error = error
            while engine.busy:
                for progress in engine.step():
                    numbers[progress.request].take(progress.tokens, progress.error)
        except BaseException:
            for number in numbers:
                engine.cancel(number)
            raise
        peak = self._peak.read()
        return [each.error or each.measured(peak, self._threshold) for each in served]

    def _request(self, ask: Ask, served: _Served) -> TokenRequest:
        self._number += 1
        sampling = SamplingParams(
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=ask.top_p,
            min_p=ask.min_p,
            seed=ask.seed,
            repetition_penalty=ask.repetition_penalty,
        )
        return TokenRequest(
            ask.tokens,
            ask.new_tokens,
            sampling,
            stop_token_ids=ask.stop_ids,
            ignore_eos=True,
            constraint=self._matcher,
            request_id=self._number,
            random_stream=0,
            emit=served.emit,
        )


class _Served:
    """A request while it is answered, from ``began`` on."""

    def __init__(self, began: float) -> None:
        self.events: list[dict[str, Any]] = []
        self._began = began
        self._emitted_s: list[float] = []
        self.error: Exception | None = None
        self._tokens: list[int] = []
        self._first_s: float | None = None
        self._first = 0
        self._seconds = 0.0

    def emit(self, event: dict[str, Any]) -> None:
        """An event of it, which is there as soon as what it tells of is done, or the next cycle is begun."""
        self._emitted_s.append(time.perf_counter() - self._began)
        self.events.append(event)

    def take(self, tokens: Sequence[int], error: Exception | None) -> None:
        """What a step gave it, just now."""
        self.error = self.error or error
        seconds = self._seconds = time.perf_counter() - self._began
        if tokens and self._first_s is None:
            self._first_s, self._first = seconds, len(tokens)
        self._tokens += tokens

    def measured(self, peak: int, threshold: float | None) -> Measured:
        """The whole answer."""
        cycles = [event for event in self.events if event["event"] == "cycle"]
        stages = {stage: float(sum(cycle[f"{stage}_s"] for cycle in cycles)) for stage in STAGES}
        reason = next(e["finish_reason"] for e in self.events if e["event"] == "request_end")
        return Measured(
            self._tokens,
            reason,
            self._seconds,
            first_token_s=self._first_s,
            first_tokens=self._first,
            prefill_s=sum(event["seconds"] for event in self.events if event["event"] == "prefill"),
            decode_s=sum(stages.values()),
            stage_s=stages,
            steps=len(cycles),
            drafted=sum(cycle["drafted"] for cycle in cycles),
            accepted=sum(cycle["accepted"] for cycle in cycles),
            depths=depths_of([(cycle["drafted"], cycle["accepted"]) for cycle in cycles]),
            nodes=sum(cycle["tree_nodes"] for cycle in cycles),
            passes=passes_of(cycles),
            attention=attention_of(cycles, threshold),
            resident_bytes=peak,
            timeline=timeline_of(self.events, self._emitted_s),
            verdict_s=float(sum(cycle["verdict_s"] for cycle in cycles)),
            verdict_s2=float(sum(cycle["verdict_s"] ** 2 for cycle in cycles)),
        )


def timeline_of(events: Sequence[Mapping[str, Any]], emitted_s: Sequence[float]) -> list[dict[str, float]]:
    """What was done until when, as :class:`Measured` has it; ``emitted_s``: of every event."""
    found = []
    for event, end_s in zip(events, emitted_s, strict=True):
        if event["event"] == "prefill":
            found.append({"end_s": end_s, "prefill": event["seconds"]})
        elif event["event"] == "cycle":
            stages = {stage: event[f"{stage}_s"] for stage in STAGES}
            facts = {key: event[key] for key in ("step", "drafted", "accepted")}
            found.append({"end_s": end_s, **stages, **facts, "tokens": len(event["tokens"])})
    return found
