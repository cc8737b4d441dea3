"""Many clients at once, of all kinds: no answer is lost, mixed or wrong. (200 of them: benchmarks.serving_load.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from benchmarks.support.serving_clients import KINDS, Outcome, answered, cases_of, faults, load
from spec_sdk import Engine
from spec_sdk.serve.options import ServeConfig
from tests.support.serving import served

PROMPTS = ("Why is the sky blue?", "Name three colours.", "Count to ten.", "Say it again and again and again.")


def test_answers_under_load_are_those_alone(engine: Engine, scale: Callable[[int, int], int]) -> None:
    cases = cases_of(scale(60, 400), PROMPTS, 24)
    assert {case.kind for case in cases} == set(KINDS)
    with served(engine, ServeConfig(port=0, max_num_seqs=4, max_queue=8, access_log=False)) as running:
        outcomes = asyncio.run(load(cases, running.port, 16))
        running.wait_for("requests_running", 0)

        async def by_themselves() -> list[Outcome | None]:
            again = [case if case.kind not in ("leaver", "malformed") else None for case in cases]
            return [None if case is None else await answered(case.alone(), running.port) for case in again]

        alone = asyncio.run(by_themselves())
        assert running.metric("requests_waiting") == 0
        assert running.metric("requests_total", endpoint="/v1/completions", status="500") == 0
    assert faults(cases, outcomes, alone) == []
    # the comparison can fail: answers differ from request to request
    assert len({str(outcome.texts) for outcome in alone if outcome is not None}) > len(cases) // 4


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
