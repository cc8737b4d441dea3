"""What Prometheus reads at /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from spec_sdk.api.answer import Answer
from spec_sdk.metrics import ratio

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
RATES = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


@dataclass(frozen=True)
class FirstTokens:
    """Those that came first of an answer, in one step: when, of the monotonic clock, and how many."""

    at: float
    count: int


class Counts:
    """Counters since the server started, and what is going on now.

    ``slots``: answers that the engine works on at once; what is begun beyond them waits.
    """

    def __init__(self, slots: int) -> None:
        self.registry = CollectorRegistry()
        self._live = 0
        self.requests = self._counter("requests", "Requests by endpoint and status.", "endpoint", "status")
        self.cancelled = self._counter("cancelled_requests", "Requests whose client left before the end.")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts of answers that ended.")
        self._generated = self._counter("generation_tokens", "New tokens, those of cancelled requests too.")
        self._passes = self._counter("target_passes", "Passes of the target over a token tree, of answers that ended.")
        self._drafted = self._counter("drafted_tokens", "Depth of all token trees, of answers that ended.")
        self._accepted = self._counter("accepted_tokens", "Drafted tokens that were kept, of answers that ended.")
        self._predictions = self._counter("attention_predictions", "Attention predictions.")
        self._hits = self._counter("attention_hits", "Attention predictions that were accepted.")
        self.first_token = self._histogram("time_to_first_token_seconds", "From a request to its first token.", SECONDS)
        self.seconds = self._histogram("request_seconds", "From a request to the end of its answers.", SECONDS)
        self.rate = self._histogram("tokens_per_second", "Of an answer, after its first tokens.", RATES)
        self._gauge("requests_running", "Answers that are worked on.", lambda: min(self._live, slots))
        self._gauge("requests_waiting", "Answers in the queue.", lambda: max(self._live - slots, 0))
        sums = dict.fromkeys(("new", "passes", "drafted", "accepted", "predictions", "hits"), 0)
        self._sums = sums
        self._ratio("acceptance_rate", "Accepted over drafted tokens.", "accepted", "drafted")
        self._ratio("mean_accepted_tokens", "New tokens per target pass (MAT).", "new", "passes")
        self._ratio("attention_hit_rate", "Accepted over all attention predictions.", "hits", "predictions")

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def begun(self, answers: int) -> None:
        self._live += answers

    def left(self, answers: int) -> None:
        """Answers that ended, or that nobody waits for any more."""
        self._live -= answers

    def tokens(self, count: int) -> None:
        self._generated.inc(count)

    def ended(self, answer: Answer, first: FirstTokens | None) -> None:
        """An answer and what speculation did for it. ``first``: None if no token of it was sent."""
        metrics = answer.metrics
        attention = metrics["attention"] or {"predictions": 0, "hits": 0}
        self._prompt.inc(metrics["prompt_tokens"])
        for name, counter, value in (
            ("new", None, metrics["new_tokens"]),
            ("passes", self._passes, metrics["steps"]),
            ("drafted", self._drafted, metrics["drafted"]),
            ("accepted", self._accepted, metrics["accepted"]),
            ("predictions", self._predictions, attention["predictions"]),
            ("hits", self._hits, attention["hits"]),
        ):
            self._sums[name] += value
            if counter is not None:
                counter.inc(value)
        if first is not None and metrics["new_tokens"] > first.count:
            self.rate.observe((metrics["new_tokens"] - first.count) / max(time.monotonic() - first.at, 1e-9))

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"spec_sdk_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"spec_sdk_{name}", doc, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, doc: str, value: Callable[[], float]) -> None:
        Gauge(f"spec_sdk_{name}", doc, registry=self.registry).set_function(value)

    def _ratio(self, name: str, doc: str, part: str, whole: str) -> None:
        """NaN, which Prometheus knows, where there is nothing yet."""

        def value() -> float:
            share = ratio(self._sums[part], self._sums[whole])
            return float("nan") if share is None else share

        self._gauge(name, f"{doc} Since the start.", value)
