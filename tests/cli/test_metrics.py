"""The counts, worked out by hand."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from spec_sdk.events import EventLog, finite
from spec_sdk.metrics import comparison, request_metrics, summarise


def cycle(
    tokens: list[int], drafted: int, accepted: int, hit: list[bool | None] | None = None, **more: Any
) -> dict[str, Any]:
    attention = None
    if hit is not None:
        errors = [None if h is None else 0.25 if h else 0.75 for h in hit]
        attention = {"hit": hit, "error": errors, "state_norm": [1.0] * (len(hit) + 1), "constants": None}
    return {
        "event": "cycle",
        "request": 0,
        "draft_s": 0.5,
        "verify_s": 1.0,
        "recover_s": 0.25,
        "drafted": drafted,
        "accepted": accepted,
        "tokens": tokens,
        "host_reads": 2,
        "attention": attention,
        **more,
    }


def request(*cycles: dict[str, Any], end: str | None = "stop", request: int = 0) -> list[dict[str, Any]]:
    events = [
        {"event": "request_start", "request": request, "prompt_tokens": 10},
        {"event": "prefill", "request": request, "seconds": 2.0},
        *cycles,
    ]
    return events if end is None else [*events, {"event": "request_end", "request": request, "finish_reason": end}]


def test_a_request() -> None:
    record = request_metrics(request(cycle([1, 2, 3], 4, 2), cycle([4], 4, 0), cycle([5, 6], 1, 1)))
    assert record == {
        "prompt_tokens": 10,
        "new_tokens": 6,
        "token_ids": [1, 2, 3, 4, 5, 6],
        "finish_reason": "stop",
        "prefill_s": 2.0,
        "decode_s": 3 * 1.75,
        "steps": 3,
        "drafted": 9,
        "accepted": 3,
        "acceptance_rate": 3 / 9,
        "mean_accepted_tokens": 2.0,
        "stage_s": {"draft": 1.5, "verify": 3.0, "recover": 0.75},
        "host_reads_per_step": 2.0,
        "attention": None,
    }


def test_plain_decoding_drafts_nothing_and_has_a_mat_of_one() -> None:
    record = request_metrics(request(cycle([1], 0, 0), cycle([2], 0, 0)))
    assert record["acceptance_rate"] is None
    assert record["mean_accepted_tokens"] == 1.0


def test_a_request_that_was_cut_off() -> None:
    record = request_metrics(request(cycle([1], 0, 0), end=None))
    assert record["finish_reason"] == "interrupted"
    assert request_metrics(request(end="interrupted"))["mean_accepted_tokens"] is None


def test_hit_rates_leave_out_layers_that_predicted_nothing() -> None:
    record = request_metrics(
        request(
            cycle([1], 0, 0, [None, None, None]),
            cycle([2], 0, 0, [True, False, None]),
            cycle([3], 0, 0, [True, True, None]),
            cycle([4], 0, 0, None),
        )
    )
    assert record["attention"] == {
        "predictions": 4,
        "hits": 3,
        "hit_rate": 3 / 4,
        "hit_rate_per_layer": [1.0, 0.5, None],
        "mean_error": 1.5 / 4,
        "max_error": 0.75,
        "mean_error_per_layer": [0.25, 0.5, None],
        "max_error_per_layer": [0.25, 0.75, None],
        "error_bounds": None,
    }


def test_trivial_predictions_alone_have_no_rate() -> None:
    record = request_metrics(request(cycle([1], 0, 0, [None, None])))
    attention = record["attention"]
    assert (attention["hit_rate"], attention["mean_error"], attention["max_error"]) == (None, None, None)
    assert attention["hit_rate_per_layer"] == attention["max_error_per_layer"] == [None, None]


def test_the_summary_weighs_prompts_by_their_tokens() -> None:
    events = request(cycle([1, 2, 3], 2, 2)) + request(cycle([4], 2, 0, request=1), request=1)
    summary = summarise(events)
    assert (summary["prompts"], summary["prompt_tokens"], summary["new_tokens"]) == (2, 20, 4)
    assert (summary["prefill_s"], summary["decode_s"]) == (4.0, 3.5)
    assert summary["tokens_per_second"] == 4 / 3.5
    assert summary["acceptance_rate"] == 0.5


def test_a_run_without_a_cycle_has_no_rates() -> None:
    summary = summarise([])
    assert (summary["tokens_per_second"], summary["mean_accepted_tokens"]) == (None, None)
    assert comparison(summary, summary)["speedup"] is None


def test_speedup_is_a_ratio_of_tokens_per_second() -> None:
    ours = summarise(request(cycle([1, 2, 3, 4], 3, 3)))
    vanilla = summarise(request(cycle([1], 0, 0), cycle([2], 0, 0)))
    assert comparison(ours, vanilla) == {"vanilla": vanilla, "speedup": pytest.approx(4.0)}


def test_the_log_writes_json_lines_that_any_reader_takes() -> None:
    file = io.StringIO()
    seen: list[dict[str, Any]] = []
    log = EventLog("easyspec_paper", file, lambda event: seen.append(event))
    log.emit({"event": "prefill", "request": 0, "seconds": float("nan")})
    log.emit({"event": "cycle", "request": 1, "attention": {"error": [float("inf"), 0.5, None]}})
    lines = [json.loads(line, parse_constant=lambda c: pytest.fail(c)) for line in file.getvalue().splitlines()]
    assert [line.pop("timestamp")[-1] for line in lines] == ["Z", "Z"]
    assert lines == [
        {"event": "prefill", "request": 0, "seconds": None, "pipeline": "easyspec_paper"},
        {"event": "cycle", "request": 1, "attention": {"error": [None, 0.5, None]}, "pipeline": "easyspec_paper"},
    ]
    assert lines == seen
    assert log.of_request(1) == log.events[1:]


def test_only_floats_that_json_lacks_become_null() -> None:
    assert finite({"a": (1, 2.5, float("-inf")), "b": True}) == {"a": [1, 2.5, None], "b": True}
