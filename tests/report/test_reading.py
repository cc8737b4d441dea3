"""Directories of runs are read whole, partial runs are said to be partial, and what is no run is refused in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.errors import UserError
from spec_sdk.run_report.bench_runs import read_bench_run
from spec_sdk.run_report.finding import read_runs
from spec_sdk.run_report.generate_runs import read_generate
from spec_sdk.run_report.groups import grouped
from tests.support.run_records import (
    LAYERS,
    MACHINE,
    SPEEDS,
    answer_record,
    bench_records,
    candidate_record,
    run_record,
    write_bench,
    write_generate,
)


def test_a_bench(tmp_path: Path) -> None:
    run = read_bench_run(write_bench(tmp_path))
    assert (run.target, run.dtype) == ("SmolLM2-135M-Instruct", "bfloat16")
    assert run.command == "python -m spec_sdk task=bench 'task.pipelines=[vanilla,suffix]'"
    assert "load_average" not in run.machine and run.machine["torch"] == MACHINE["torch"]
    assert [candidate.name for candidate in run.candidates] == list(SPEEDS)
    assert len(run.answers) == len(SPEEDS) * 2 * 12
    assert not run.partial and not run.failures
    [answer] = [a for a in run.answers if a.candidate == "alspec λ=0.1" and a.question == (0.0, 1, 0, "83", 0)]
    assert answer.attention is not None and len(answer.attention.hits) == LAYERS
    assert answer.attention.threshold == 0.1
    # of the first temperature, and of pipelines alone
    assert [timeline.candidate for timeline in run.timelines] == [name for name in SPEEDS if name != "llama.cpp"]
    prefill, cycle = run.timelines[0].cycles[:2]
    assert list(prefill.seconds) == ["prefill"] and list(cycle.seconds) == ["draft", "verify", "recover"]
    assert prefill.end < cycle.end and cycle.facts == {"step": 1, "drafted": 0, "accepted": 1, "tokens": 2}
    peer = next(a for a in run.answers if a.candidate == "llama.cpp")
    assert peer.stage_s is None and peer.depths is None and peer.passes is None


def test_a_cut_off_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    write_bench(tmp_path, bench_records(["vanilla", "suffix"]))
    path = tmp_path / "bench.jsonl"
    path.write_text(path.read_text() + '{"record":"answer","candi')
    run = read_bench_run(tmp_path)
    assert run.partial == ["its last line is cut off"]


def test_a_candidate_that_is_behind_makes_it_partial(tmp_path: Path) -> None:
    records = bench_records(["vanilla", "suffix"])
    records.remove(next(r for r in records if r["record"] == "answer" and r["candidate"] == "suffix"))
    records.append(
        {"record": "failure", "candidate": "suffix", "reason": "error", "temperature": 0.0, "prompt": "81"}
        | {"error": "no luck"}
    )
    run = read_bench_run(write_bench(tmp_path, records))
    assert run.partial == ["suffix has 23 of 24 answers"]
    assert run.failures == ["suffix (prompt 81): no luck"]


def test_what_was_resumed_is_one_run_and_on_another_machine_none(tmp_path: Path) -> None:
    more = [answer_record("suffix", 1)]
    begun = [run_record(), candidate_record("suffix"), answer_record("suffix", 0)]
    busy = run_record(resumed=True, machine={**MACHINE, "load_average": [9.0, 9.0, 9.0], "device": "waiting otherwise"})
    assert len(read_bench_run(write_bench(tmp_path / "a", [*begun, busy, *more])).answers) == 2
    other = run_record(resumed=True, machine={**MACHINE, "hardware": "another"})
    told = (
        r"line 4: it goes on with other settings than .* line 1 \(hardware: AMD EPYC, 2 threads there, another here\)"
    )
    with pytest.raises(UserError, match=told):
        read_bench_run(write_bench(tmp_path / "b", [*begun, other, *more]))


def test_an_answer_that_was_given_again_counts_once(tmp_path: Path) -> None:
    again = answer_record("suffix", 0, seconds=9.0)
    records = [run_record(), candidate_record("suffix"), answer_record("suffix", 0), again]
    run = read_bench_run(write_bench(tmp_path, records))
    assert [answer.seconds for answer in run.answers] == [9.0]


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([], "there is no record of a run in it"),
        ([answer_record("suffix", 0)], "line 1: the first record must be of a run, not 'answer'"),
        ([run_record(schema_version=2)], "line 1: schema version 2; this version of spec-sdk reads 1"),
        ([run_record(), answer_record("suffix", 0)], "line 2: the candidate 'suffix' was not introduced before"),
        ([run_record(), candidate_record("suffix"), answer_record("suffix", 0, seconds=None)], "line 3: null is no"),
        ([run_record(), candidate_record("suffix"), answer_record("suffix", 0, seconds="2")], 'is "2", not a number'),
        (
            [run_record(), candidate_record("suffix"), answer_record("suffix", 0, depths=[3])],
            "has 3, not 2 whole numbers",
        ),
        ([run_record(), candidate_record("suffix"), answer_record("suffix", 0, passes={"a": 1})], 'has "a", not a'),
        (
            [run_record(), candidate_record("suffix"), answer_record("suffix", 0, passes={"1": [1]})],
            "has [1], not a whole",
        ),
        ([run_record(), candidate_record("suffix", kind="ours")], "'kind' is \"ours\", not one of pipeline, peer"),
        ([run_record(), {"record": "failure", "candidate": "suffix"}], "line 2: there is no 'reason'"),
        ([{"no": "kind"}], "line 1: there is no 'record'"),
        ([[1]], "line 1: [1] is no JSON object"),
    ],
)
def test_wrong_records_are_named(tmp_path: Path, records: list[Any], told: str) -> None:
    with pytest.raises(UserError) as raised:
        read_bench_run(write_bench(tmp_path, records))
    assert told in str(raised.value) and str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_torn_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write_bench(tmp_path) / "bench.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = lines[3][:40] + "\n"
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"bench\.jsonl line 4: no JSON"):
        read_bench_run(tmp_path)


def test_a_bench_of_before_timelines_were_kept_has_none(tmp_path: Path) -> None:
    records = [{key: record[key] for key in record if key != "timeline"} for record in bench_records()]
    run = read_bench_run(write_bench(tmp_path, records))
    assert run.answers and not run.timelines


def test_a_generate_run(tmp_path: Path) -> None:
    run = read_generate(write_generate(tmp_path, "pipeline=alspec", "prompt=Why?", hits=True, drafted=3))
    assert [candidate.name for candidate in run.candidates] == ["alspec", "vanilla"]
    assert len(run.answers) == 4 and not run.partial
    ours = run.answers[0]
    # 12 cycles that draft 3, of which 1, 2, 0, 1 … are accepted
    assert ours.depths == [(12, 8), (12, 4), (12, 0)] and ours.passes is not None
    [(nodes, (cycles, seconds))] = ours.passes.items()
    assert (nodes, cycles) == (4, 12) and seconds == pytest.approx(12 * 0.7 * 0.032)
    assert ours.attention is not None and ours.attention.hits[:2] == [(0, 0), (8, 12)]
    assert ours.attention.threshold == 0.1
    assert ours.decode_s is not None and ours.seconds == pytest.approx(0.08 + ours.decode_s)
    assert [(timeline.candidate, len(timeline.cycles)) for timeline in run.timelines] == [
        ("alspec", 26),
        ("vanilla", 50),
    ]


def test_rows_that_were_rounded_make_another_model(tmp_path: Path) -> None:
    """Where attention is predicted they are not: beside plain decoding of another run both speed and tokens differ."""
    rounded, whole, untold = (write_generate(tmp_path / name) for name in ("rounded", "whole", "untold"))
    for directory, rounds in ((rounded, True), (whole, False)):
        path = directory / "metrics.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rounds_rows": rounds}))
    weights = [read_generate(directory).weights for directory in (rounded, whole, untold)]
    assert weights == ["auto, rows in 8 bits, KV cache auto", *["auto, KV cache auto"] * 2]
    runs = [read_generate(directory) for directory in (rounded, whole)]
    assert len(list(grouped(runs, "vanilla"))) == 2


def test_vanilla_compared_with_itself_is_two_candidates(tmp_path: Path) -> None:
    run = read_generate(write_generate(tmp_path, "pipeline=vanilla", drafted=0))
    assert [candidate.name for candidate in run.candidates] == ["vanilla", "vanilla, again"]
    assert {answer.candidate for answer in run.answers} == {"vanilla", "vanilla, again"}


@pytest.mark.parametrize(("temperature", "guarantee"), [(0.0, "exact"), (0.8, "distribution")])
def test_plain_decoding_has_the_guarantee_that_was_recorded(tmp_path: Path, temperature: float, guarantee: str) -> None:
    run = read_generate(write_generate(tmp_path, f"sampling.temperature={temperature}"))
    assert [c.guarantee for c in run.candidates if c.pipeline == "vanilla"] == [guarantee]


def test_compared_runs_may_take_turns_at_the_prompts(tmp_path: Path) -> None:
    """As task=generate lets them, or one after the other: the same answers, and each rank's calls with its run."""
    from tests.support.run_records import write_lines

    def requests(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = []
        for line in lines:
            if line["event"] == "request_start":
                found.append([])
            found[-1].append(line)
        return found

    one_after_the_other = read_generate(write_generate(tmp_path, prompts=3))
    path = tmp_path / "events.jsonl"
    each = requests([json.loads(line) for line in path.read_text().splitlines()])
    assert [request[0]["request"] for request in each] == [0, 1, 2] * 2
    turns = [line for i in range(3) for half in (each[i], each[i + 3]) for line in half]
    write_lines(path, turns)
    in_turns = read_generate(tmp_path)
    assert [a.__dict__ for a in in_turns.answers] == [a.__dict__ for a in one_after_the_other.answers]
    assert len(in_turns.answers) == 6 and in_turns.partial == []
    follower = {"event": "follower", "rank": 1, "calls": [], "timestamp": turns[-1]["timestamp"]}
    write_lines(path, [*turns, {**follower, "pipeline": "suffix"}, {**follower, "pipeline": "vanilla"}])
    assert len(read_generate(tmp_path).answers) == 6


def test_the_choice_of_a_plugin_is_told_in_words(tmp_path: Path) -> None:
    write_generate(tmp_path, "drafter=prompt_lookup", "drafter.max_ngram=5")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    metrics["overridden"] = ["drafter", "max_new_tokens"]
    metrics["plugins"]["drafter"] = {"name": "prompt_lookup", "max_ngram": 5}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    [candidate, _] = read_generate(tmp_path).candidates
    assert candidate.overrides == ["drafter=prompt_lookup (max_ngram=5)", "max_new_tokens=128"]


def test_an_interrupted_generate_run_is_partial(tmp_path: Path) -> None:
    write_generate(tmp_path, compare=False)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    metrics["prompts"][1]["finish_reason"] = "interrupted"
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    run = read_generate(tmp_path)
    assert len(run.answers) == 1
    assert run.partial == ["suffix: 1 of 2 answers broke off, and are left out"]


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("metrics.json", '{"schema_version": 7}', "schema version 7"),
        ("metrics.json", "{", "no JSON"),
        ("config.yaml", "a: [", "no YAML"),
        ("config.yaml", "", "it has no options"),
        ("events.jsonl", '{"event": "cycle"}\n', "the first event must be request_start"),
        ("events.jsonl", '{"event": 3}\n', "'event' is 3, not a text"),
    ],
)
def test_wrong_files_of_a_generate_run_are_named(tmp_path: Path, file: str, content: str, told: str) -> None:
    write_generate(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError) as raised:
        read_generate(tmp_path)
    assert told in str(raised.value) and file in str(raised.value)


def test_a_sweep_is_its_jobs_also_where_it_was_moved(tmp_path: Path) -> None:
    for i in range(2):
        write_generate(tmp_path / "moved" / f"{i}-job", compare=False)
    jobs = [
        {"job": "a", "error": None, "output_dir": "/gone/0-job"},
        {"job": "b", "error": None, "output_dir": str(tmp_path / "moved" / "1-job")},
        {"job": "c", "error": "model.target: no such model", "output_dir": None},
    ]
    (tmp_path / "moved" / "summary.json").write_text(json.dumps({"jobs": jobs}))
    runs, failed = read_runs([str(tmp_path / "moved")])
    assert [run.path.name for run in runs] == ["0-job", "1-job"]
    assert failed == [f"{tmp_path / 'moved'}, job c: model.target: no such model"]


def test_a_sweep_that_was_cut_off_is_the_jobs_that_had_ended(tmp_path: Path) -> None:
    """Its last line may be torn; what an earlier sweep into the same directory left is not looked at."""
    for i in range(2):
        write_generate(tmp_path / f"{i}-job", compare=False)
    of_an_earlier_one = [{"job": "b", "error": None, "output_dir": str(tmp_path / "1-job")}]
    (tmp_path / "summary.json").write_text(json.dumps({"jobs": of_an_earlier_one}))
    ended = {"number": 0, "name": "a", "status": 0, "error": None, "output_dir": str(tmp_path / "0-job")}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(ended) + '\n{"number": 1, "na')
    runs, failed = read_runs([str(tmp_path)])
    assert [run.path.name for run in runs] == ["0-job"]
    assert len(failed) == 1 and "the sweep was cut off, or is still running" in failed[0]


def test_prompts_that_share_an_id_are_told_apart(tmp_path: Path) -> None:
    """By their places: each answer is compared with plain decoding's of the same prompt."""
    write_generate(tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for half in (metrics, metrics["comparison"]):
        for prompt in half["prompts"]:
            prompt["id"] = 2
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    run = read_generate(tmp_path)
    questions = [answer.question for answer in run.answers if answer.candidate == run.candidates[0].name]
    assert len(questions) == len(set(questions)) == len(metrics["prompts"]) > 1


def test_a_directory_named_twice_is_read_once(tmp_path: Path) -> None:
    write_bench(tmp_path / "a")
    runs, _ = read_runs([str(tmp_path / "a"), str(tmp_path / "a" / ".." / "a")])
    assert len(runs) == 1
