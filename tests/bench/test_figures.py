"""The figures of a benchmark, by hand-worked cases."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from spec_sdk.bench.figures import all_figures, faults, figures_of, losslessness_of, tasks_of
from spec_sdk.bench.records import CheckRecord, FailureRecord, Setting
from spec_sdk.bench.spreads import Spread, spread_of
from spec_sdk.bench.summary import exit_status, summary_of
from tests.bench.answers import answer, run_of

GREEDY = Setting(0.0, 1)


def test_a_spread_has_quartiles_from_four_numbers_on() -> None:
    assert spread_of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert spread_of([None, math.nan, math.inf]) is None


def test_the_speedup_is_the_median_of_prompts_own_ratios() -> None:
    # 1.0, 2.0 and 4.0 times as fast; the ratio of medians would be another one
    run = run_of(
        [
            *(answer("vanilla", prompt, 10, seconds) for prompt, seconds in (("a", 1.0), ("b", 10.0), ("c", 4.0))),
            *(answer("fast", prompt, 10, seconds) for prompt, seconds in (("a", 1.0), ("b", 5.0), ("c", 1.0))),
        ]
    )
    fast = figures_of(run, "fast", GREEDY)
    assert fast is not None and fast.speedup == Spread(2.0, 1.0, 4.0, 3)
    assert fast.tokens_per_second == Spread(10.0, 2.0, 10.0, 3)
    vanilla = figures_of(run, "vanilla", GREEDY)
    assert vanilla is not None and vanilla.speedup == Spread(1.0, 1.0, 1.0, 3)


def test_turns_count_together_and_rounds_by_their_median() -> None:
    times = {0: (4.0, 4.0), 1: (8.0, 4.0), 2: (16.0, 4.0)}
    run = run_of(
        [
            record
            for number, (plain, ours) in times.items()
            for turn, share in ((0, 0.25), (1, 0.75))
            for record in (
                answer("vanilla", "a", 8, plain * share, round=number, turn=turn),
                answer("fast", "a", 8, ours * share, round=number, turn=turn),
            )
        ]
    )
    fast = figures_of(run, "fast", GREEDY)
    # ratios 1, 2 and 4; 16 tokens in 4 seconds
    assert fast is not None and fast.speedup == Spread(2.0, 2.0, 2.0, 1)
    assert fast.tokens_per_second == Spread(4.0, 4.0, 4.0, 1)
    assert (fast.prompts, fast.answers) == (1, 6)


def test_acceptance_stages_and_times_of_tokens() -> None:
    cycles = {
        "steps": 4,
        "drafted": 8,
        "accepted": 4,
        "depths": [[4, 3], [4, 1]],
        "nodes": 12,
        "decode_s": 2.0,
        "stage_s": {"draft": 0.4, "verify": 1.2, "recover": 0.4},
    }
    first = {"first_token_s": 0.5, "first_tokens": 2, "prefill_s": 0.25, "resident_bytes": 7}
    run = run_of([answer("vanilla", "a", 8, 4.0, decode_s=4.0), answer("fast", "a", 8, 3.5, **cycles, **first)])
    fast = figures_of(run, "fast", GREEDY)
    assert fast is not None
    assert (fast.mean_accepted_tokens, fast.acceptance_rate, fast.nodes_per_cycle) == (2.0, 0.5, 3.0)
    assert fast.acceptance_by_depth == [0.75, 0.25]
    assert fast.stage_s_per_cycle == pytest.approx({"draft": 0.1, "verify": 0.3, "recover": 0.1})
    assert fast.seconds_per_token == Spread(0.5, 0.5, 0.5, 1)
    assert fast.decode_speedup == Spread(2.0, 2.0, 2.0, 1)
    assert fast.resident_bytes == 7
    vanilla = figures_of(run, "vanilla", GREEDY)
    assert vanilla is not None and vanilla.seconds_per_token is None and vanilla.acceptance_rate is None


def test_tasks_are_apart_and_unpaired_or_empty_answers_have_no_ratio() -> None:
    run = run_of(
        [
            answer("vanilla", "a", 10, 1.0, task="qa"),
            answer("vanilla", "b", 0, 0.1, task="rag"),
            answer("fast", "a", 10, 0.5, task="qa"),
            answer("fast", "b", 10, 1.0, task="rag"),
            answer("fast", "c", 10, 1.0, task="rag"),
        ]
    )
    assert tasks_of(run) == ["qa", "rag"]
    rag = figures_of(run, "fast", GREEDY, "rag")
    assert rag is not None and rag.speedup is None and rag.prompts == 2
    everything = figures_of(run, "fast", GREEDY)
    assert everything is not None and everything.speedup == Spread(2.0, 2.0, 2.0, 1)
    assert figures_of(run, "fast", Setting(1.0, 1)) is None
    assert [(f.candidate, f.task) for f in all_figures(run)][:3] == [
        ("vanilla", "all"),
        ("vanilla", "qa"),
        ("vanilla", "rag"),
    ]


def test_a_conversation_that_was_broken_off_does_not_count() -> None:
    failed = FailureRecord(
        candidate="fast", reason="error", error="no", temperature=0.0, batch_size=1, round=0, prompt="a"
    )
    run = run_of([answer("vanilla", "a", 10, 1.0), answer("fast", "a", 10, 0.1), failed.as_record()])
    assert figures_of(run, "fast", GREEDY) is None
    assert exit_status(run) == 1


def test_batches_are_compared_by_throughput() -> None:
    of = {
        "record": "batch",
        "temperature": 0.0,
        "batch_size": 2,
        "round": 0,
        "prompts": ["a", "b"],
        "first_token_s": [],
    }
    run = run_of(
        [
            *(answer(name, prompt, 10, 1.0, batch_size=2) for name in ("vanilla", "fast") for prompt in "ab"),
            {**of, "candidate": "vanilla", "first": 0, "seconds": 4.0, "new_tokens": 20},
            {**of, "candidate": "fast", "first": 0, "seconds": 2.0, "new_tokens": 20},
        ],
        batch_sizes=[2],
    )
    fast = figures_of(run, "fast", Setting(0.0, 2))
    assert fast is not None and fast.speedup == Spread(2.0, 2.0, 2.0, 1) and fast.decode_speedup is None
    assert fast.tokens_per_second == Spread(10.0, 10.0, 10.0, 1)


def check(equal: bool, at: int | None = None, tie: bool | None = None, prompt: str = "a") -> dict[str, object]:
    return CheckRecord(
        candidate="fast", prompt=prompt, turn=0, batch_size=1, round=0, equal=equal, first_difference=at, tie=tie
    ).as_record()


def test_losslessness_tells_ties_from_faults() -> None:
    answers = [answer("fast", prompt, 10, 1.0) for prompt in "abc"]
    checks = [check(True), check(False, 4, True, "b"), check(False, 1, False, "c")]
    run = run_of([*answers, *checks])
    found = losslessness_of(run, "fast")
    assert (found.compared, found.equal, found.ties, found.faults) == (3, 1, 1, 1)
    assert (found.mean_common_tokens, found.mean_tokens) == (5.0, 10.0)
    assert faults(run) == ["fast"] and exit_status(run) == 1
    run.candidates["fast"] = dataclasses.replace(run.candidates["fast"], guarantee="relaxed")
    assert faults(run) == [] and exit_status(run) == 0
    assert json.dumps(summary_of(run), allow_nan=False)


def test_only_what_pipelines_did_not_answer_changes_the_status() -> None:
    def status(reason: str, kind: str = "pipeline") -> int:
        failure = {"record": "failure", "candidate": "fast", "reason": reason, "error": "no", "prompt": "a"}
        run = run_of([failure], temperatures=[0.0])
        run.head.data["candidates"]["fast"] = kind
        return exit_status(run)

    assert [status(reason) for reason in ("not_started", "error", "too_long", "refused")] == [1, 1, 0, 0]
    assert status("error", "peer") == 0
