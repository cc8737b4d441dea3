"""Many clients at once, of all kinds: no answer is lost, mixed or wrong. (200 of them: benchmarks.serving_load.)"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.serving_soak import growth_of
from benchmarks.support.serving_clients import KINDS, Outcome, answered, cases_of, faults, load
from spec_sdk import Engine
from spec_sdk.serve.options import ServeConfig
from tests.support.serving import get, served

PROMPTS = ("Why is the sky blue?", "Name three colours.", "Count to ten.", "Say it again and again and again.")


def test_answers_under_load_are_those_alone(engine: Engine, scale: Callable[[int, int], int]) -> None:
    cases = cases_of(scale(60, 400), PROMPTS, 24)
    assert {case.kind for case in cases} == set(KINDS)
    with served(engine, ServeConfig(port=0, max_num_seqs=4, max_queue=8, access_log=False)) as running:
        with ThreadPoolExecutor(1) as reader:
            ended = threading.Event()
            scraped = reader.submit(scrapes, running.port, ended)
            try:
                outcomes = asyncio.run(load(cases, running.port, 16))
            finally:
                ended.set()
        running.wait_for("requests_running", 0)
        check_scrapes(scraped.result(), outcomes)

        async def by_themselves() -> list[Outcome | None]:
            again = [case if case.kind not in ("leaver", "malformed") else None for case in cases]
            return [None if case is None else await answered(case.alone(), running.port) for case in again]

        alone = asyncio.run(by_themselves())
        assert running.metric("requests_waiting") == 0
        assert running.metric("requests_total", endpoint="/v1/completions", status="500") == 0
    assert faults(cases, outcomes, alone) == []
    # the comparison can fail: answers differ from request to request
    assert len({str(outcome.texts) for outcome in alone if outcome is not None}) > len(cases) // 4


NAMED = (
    *(
        f"{name}_total"
        for name in ("requests", "generation_tokens", "target_passes", "drafted_tokens", "accepted_tokens")
    ),
    *("requests_running", "requests_waiting", "acceptance_rate", "mean_accepted_tokens", "attention_hit_rate"),
    *(f"{name}_count" for name in ("time_to_first_token_seconds", "tokens_per_second", "request_seconds")),
)


def scrapes(port: int, ended: threading.Event) -> list[dict[str, float]]:
    """What Prometheus would read while clients are served, and once they are: sums over labels, by name."""
    found = []
    while True:
        last = ended.wait(0.05)
        status, text = get(port, "/metrics")
        assert status == 200
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        found.append(sums)
        if last:
            return found


def check_scrapes(found: list[dict[str, float]], outcomes: list[Outcome]) -> None:
    """All that is promised is there, counters never fall, and what clients were told of was counted."""
    for sums in found:
        assert {f"spec_sdk_{name}" for name in NAMED} <= sums.keys()
        assert sums["spec_sdk_requests_running"] <= 4 and sums["spec_sdk_requests_waiting"] <= 8
    for name in (name for name in found[0] if name.endswith(("_total", "_count"))):
        values = [sums.get(name, 0.0) for sums in found]
        assert values == sorted(values), name
    told = sum(outcome.usage.get("completion_tokens", 0) for outcome in outcomes)
    assert found[-1]["spec_sdk_generation_tokens_total"] >= told > 0


def test_growth_is_found() -> None:
    mib = 2**20
    flat = [(5.0 * i, 1000 * mib + (i % 3)) for i in range(200)]
    filling = [(at, size - (100 * mib if at < 200 else 0)) for at, size in flat]
    leaking = [(at, size + int(at * mib / 10)) for at, size in flat]
    assert abs(growth_of(flat)[0]) < mib and abs(growth_of(filling)[0]) < mib
    growth, slope = growth_of(leaking)
    assert growth / mib == pytest.approx(50, abs=1) and slope / mib == pytest.approx(360, rel=0.01)
    with pytest.raises(ValueError, match="readings"):
        growth_of(flat[:7])


def test_faults_are_found() -> None:
    """What the load test asserts of good outcomes is not so of bad ones."""
    cases = cases_of(20, PROMPTS, 8)
    good = Outcome(status=200, texts={0: "a"}, complete=True)
    refused = Outcome(status=400, error={"message": "no"})
    told = replace(good, usage={"completion_tokens": 3}, traced=3)
    due = {"malformed": refused, "watched": told}
    right = [due.get(case.kind, good) for case in cases]
    own = {"malformed": None, "leaver": None, "watched": told}
    alone: list[Outcome | None] = [own.get(case.kind, good) for case in cases]
    assert faults(cases, right, alone) == []
    for bad in (
        Outcome(status=500),
        Outcome(status=200, texts={0: "a"}),
        Outcome(status=200, texts={0: "b"}, complete=True),
    ):
        whole = next(i for i, case in enumerate(cases) if case.kind == "whole")
        assert len(faults(cases, [*right[:whole], bad, *right[whole + 1 :]], alone)) == 1
    watched = next(i for i, case in enumerate(cases) if case.kind == "watched")
    lost = replace(told, traced=2)
    assert len(faults(cases, [*right[:watched], lost, *right[watched + 1 :]], alone)) == 1
    malformed = next(i for i, case in enumerate(cases) if case.kind == "malformed")
    assert len(faults(cases, [*right[:malformed], good, *right[malformed + 1 :]], alone)) == 1
