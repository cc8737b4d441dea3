"""``task=bench`` on a tiny checkpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from spec_sdk.bench.bench_directory import BenchDirectory
from spec_sdk.bench.candidate import Ask, Measured
from spec_sdk.bench.chosen import chosen_pipelines, chosen_vanilla
from spec_sdk.bench.figures import faults, losslessness_of
from spec_sdk.bench.pipeline_candidate import PipelineCandidate
from spec_sdk.bench.reading import BenchRun, read_bench
from spec_sdk.config.option import declared_of
from spec_sdk.tasks.bench import BenchConfig
from tests.support.text_checkpoints import write_text_checkpoint

PROMPTS = [
    {"question_id": 1, "category": "writing", "turns": ["a b c a b c a b", "again a b c"]},
    {"question_id": 2, "category": "qa", "turns": ["the cat sat on the mat"]},
    {"question_id": 3, "category": "rag", "turns": ["one two three one two three one two"]},
]
SMALL = ["model.target=model", "prompt_file=p.jsonl", "max_new_tokens=12", "ignore_eos=true", "output_dir=out"]


@pytest.fixture
def place(own_directory: Path) -> Path:
    (own_directory / "model").mkdir()
    write_text_checkpoint(own_directory / "model", max_position_embeddings=512)
    (own_directory / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    return own_directory


def keys(run: BenchRun) -> list[tuple[Any, ...]]:
    return sorted((a.candidate, a.temperature, a.batch_size, a.round, a.prompt, a.turn) for a in run.answers)


def test_the_example_in_the_text_of_the_option_is_valid() -> None:
    (text,) = (declared_of(each).doc for each in fields(BenchConfig) if each.name == "pipelines")
    example = yaml.safe_load(re.findall(r"\[.*?\]", text)[0])
    vanilla = chosen_vanilla([])
    assert [each.name for each in chosen_pipelines(example, vanilla, [], "task.pipelines")] == example


def test_all_answers_are_held_to_the_constraint(cli: Callable[..., Any], place: Path) -> None:
    yes = ["constraint=choice", "constraint.choices=[abba,baab]"]
    asked = ["task=bench", *SMALL, "ignore_eos=false", "task.pipelines=[prompt_lookup]"]
    result = cli(*asked, *yes)
    assert result.status == 0, result.err
    run = read_bench(place / "out")
    texts = {tuple(answer.tokens) for answer in run.answers}
    assert {answer.finish_reason for answer in run.answers} == {"stop"} and len(texts) <= 2
    other = cli(*asked, "constraint=choice", "constraint.choices=[abc]")
    assert other.status == 2 and "constraint" in other.err
    free = cli(*asked)
    assert free.status == 2 and "constraint" in free.err
    beside = cli(*asked, *yes, "task.peers=[transformers]", "output_dir=other")
    assert beside.status == 2 and "constraint: transformers cannot be held to it" in beside.err
    wrong = cli(*asked, "constraint=regex", "constraint.pattern='('", "output_dir=other")
    assert wrong.status == 2 and "constraint.pattern: unclosed group" in wrong.err
    assert not (place / "other").exists()


def test_pipelines_beside_plain_decoding(cli: Callable[..., Any], place: Path) -> None:
    pipelines = 'task.pipelines=[prompt_lookup, "suffix drafter.min_probability=0.2"]'
    options = ["task.temperatures=[0,1]", "task.batch_sizes=[1,2]", "task.rounds=2"]
    result = cli("task=bench", *SMALL, pipelines, *options)
    assert result.status == 0, result.err
    for line in (
        "temperature 1, batch size 2: speed-up over plain decoding",
        "suffix drafter.min_probability=0.2, temperature 0, batch size 1",
        "multi-turn conversation",
        "retrieval-augmented",
        "greedy answers beside plain decoding's",
    ):
        assert line in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert "96 of 96 answers" not in result.out and "84 of 84 answers" in result.err

    run = read_bench(place / "out")
    names = ["vanilla", "prompt_lookup", "suffix drafter.min_probability=0.2"]
    assert run.names == names
    assert len(run.answers) == 3 * 2 * 2 * (4 + 3) == 84
    assert len(set(keys(run))) == 84
    assert len(run.batches) == 3 * 2 * 2 * 2
    assert run.failures == []
    # greedy: plain decoding beside itself wherever that is another answer than the one all are held against
    assert len(run.checks) == 2 * 14 + (14 - 4)
    assert all(check.equal for check in run.checks)
    assert run.candidates["prompt_lookup"].guarantee == "exact"
    assert run.candidates[names[2]].overrides == ["drafter.min_probability=0.2"]
    greedy = {(a.prompt, a.turn, tuple(a.tokens)) for a in run.answers if a.temperature == 0}
    assert len(greedy) == 4
    kept = [a for a in run.answers if a.timeline is not None]
    assert {(a.prompt, a.turn, a.round, a.batch_size) for a in kept} == {("1", 0, 0, 1)} and len(kept) == 2 * 3
    for answer in kept:
        assert answer.timeline is not None and answer.stage_s is not None
        prefill, *cycles = answer.timeline
        assert prefill["prefill"] == answer.prefill_s and len(cycles) == answer.steps
        assert sum(cycle["verify"] for cycle in cycles) == pytest.approx(answer.stage_s["verify"])
        assert sum(cycle["tokens"] for cycle in cycles) == answer.new_tokens
        ends = [0.0, *(each["end_s"] for each in answer.timeline), answer.seconds]
        assert ends == sorted(ends)
    for answer in run.answers:
        assert answer.new_tokens == len(answer.tokens) == 12 and answer.finish_reason == "length"
        assert answer.first_token_s is not None and 0 < answer.first_token_s <= answer.seconds
        assert answer.decode_s is not None and answer.steps is not None and answer.nodes is not None
        assert answer.passes is not None and answer.resident_bytes is not None
        assert sum(cycles for cycles, _ in answer.passes.values()) == answer.steps
        assert sum(nodes * cycles for nodes, (cycles, _) in answer.passes.items()) == answer.nodes
        if answer.batch_size == 1:
            assert answer.decode_s < answer.seconds
    assert sum(a.accepted or 0 for a in run.answers) > 0
    first = run.head.data
    assert first["prompts"]["count"] == 3 and first["new_tokens"] == 12 and first["resumed"] is False
    assert first["command"][:4] == ["python", "-m", "spec_sdk", "task=bench"]
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert summary["faults"] == [] and len(summary["figures"]) == 3 * 2 * (1 + 3 + 1)
    assert (place / "out" / "config.yaml").is_file()


def test_the_runs_own_pipeline_is_the_default(cli: Callable[..., Any], place: Path) -> None:
    result = cli("task=bench", *SMALL, "pipeline=prompt_lookup", "policy=adaptive", "prompt_limit=1")
    assert result.status == 0, result.err
    assert read_bench(place / "out").names == ["vanilla", "prompt_lookup policy=adaptive"]


def test_a_run_that_came_to_its_end_only_shows_its_tables(cli: Callable[..., Any], place: Path) -> None:
    command = ["task=bench", *SMALL, "task.pipelines=[prompt_lookup]"]
    first = cli(*command)
    before = (place / "out" / "bench.jsonl").read_bytes()
    (place / "model" / "model.safetensors").unlink()
    again = cli(*command)
    assert (again.status, again.out) == (0, first.out)
    assert (place / "out" / "bench.jsonl").read_bytes() == before


OTHERS = {
    "max_new_tokens=13": "new_tokens: 12 there, 13 here",
    "task.pipelines=[suffix]": "candidates: vanilla + prompt_lookup there, vanilla + suffix here",
    "prompt_limit=2": "prompts.sha256",
    "sampling.seed=1": "sampling.seed: 0 there, 1 here",
    "model.dtype=bfloat16": "dtype: float32 there, bfloat16 here",
}


def test_a_directory_of_other_settings_is_refused(cli: Callable[..., Any], place: Path) -> None:
    command = ["task=bench", *SMALL, "task.pipelines=[prompt_lookup]"]
    assert cli(*command, "task.batch_sizes=[2]").status == 0
    before = (place / "out" / "bench.jsonl").read_bytes()
    for other, message in OTHERS.items():
        name = other.partition("=")[0]
        result = cli(
            *(option for option in command if not option.startswith(f"{name}=")), "task.batch_sizes=[2]", other
        )
        assert result.status == 2 and message in result.error, result.err
    assert (place / "out" / "bench.jsonl").read_bytes() == before


def test_a_run_that_was_interrupted_or_killed_goes_on(cli: Callable[..., Any], place: Path) -> None:
    """Ctrl-C in the middle, then SIGKILL; no finished answer is made again."""
    lines = [{**line, "question_id": i} for i, line in enumerate(PROMPTS * 4)]
    (place / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # here and in processes of their own
    options = [*SMALL, "task.pipelines=[prompt_lookup]", "max_new_tokens=60", "backend.threads=1"]
    options.remove("max_new_tokens=12")
    first, said = ended_after(place, options, 8, signal.SIGINT)
    assert "output_dir=out goes on where this one ends" in said and "Traceback" not in said
    second, _ = ended_after(place, options, len(first.splitlines()) + 8, signal.SIGKILL)
    # how threads waited is passing, and no other machine
    second = re.sub(rb'("device": ?")[^"]*', rb"\1busy at that time", second)
    first = re.sub(rb'("device": ?")[^"]*', rb"\1busy at that time", first)
    (place / "out" / "bench.jsonl").write_bytes(second + b'{"record":"answer","candi')
    result = cli("task=bench", *options)
    assert result.status == 0, result.err
    text = (place / "out" / "bench.jsonl").read_bytes()
    assert text.startswith(second) and second.startswith(first)
    run = read_bench(place / "out")
    assert len(run.answers) == len(set(keys(run))) == 2 * 16
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["resumed"] for record in records if record["record"] == "run"] == [False, True, True]
    assert sum(record["record"] == "answer" for record in records) == 32
    assert all(check.equal for check in run.checks) and len(run.checks) == 16


def ended_after(place: Path, options: list[str], records: int, with_signal: int) -> tuple[bytes, str]:
    """Run it in a process of its own, end it once there are so many lines; the whole lines that it left, and stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "spec_sdk", "task=bench", *options]
    with subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        path, until = place / "out" / "bench.jsonl", time.monotonic() + 120
        while not path.is_file() or path.read_bytes().count(b"\n") < records:
            assert process.poll() is None and time.monotonic() < until, "it ended, or is too slow, to be ended"
            time.sleep(0.002)
        process.send_signal(with_signal)
        said = process.communicate()[1]
    assert process.returncode == (130 if with_signal == signal.SIGINT else -signal.SIGKILL)
    whole = path.read_bytes().rpartition(b"\n")
    return whole[0] + whole[1], said


def test_a_pipeline_that_is_not_lossless_is_a_fault_unless_it_says_so(
    cli: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token of a lossless pipeline's answer is made wrong; a relaxed one differs by itself."""
    answer = PipelineCandidate.answer

    def wrong(self: PipelineCandidate, ask: Ask) -> Measured:
        found = answer(self, ask)
        if self.name == "prompt_lookup" and len(found.tokens) == 12:
            found.tokens[5] = (found.tokens[5] + 1) % 400
        return found

    monkeypatch.setattr(PipelineCandidate, "answer", wrong)
    relaxed = "alspec predictor.size=8 attention_verifier.threshold=inf"
    result = cli("task=bench", *SMALL, f'task.pipelines=[prompt_lookup, "{relaxed}"]')
    run = read_bench(place / "out")
    assert result.status == 1, result.err
    assert faults(run) == ["prompt_lookup"] and "FAULT" in result.out
    ours = losslessness_of(run, "prompt_lookup")
    assert (ours.faults, ours.equal, ours.mean_common_tokens) == (ours.compared, 0, 5.0)
    assert losslessness_of(run, relaxed).compared > 0 and run.candidates[relaxed].guarantee == "relaxed"
    attention = next(a.attention for a in run.answers if a.candidate == relaxed)
    # an infinity is null in JSON
    assert attention is not None and attention.threshold is None
    assert sum(predictions for _, predictions in attention.hits) > 0
    assert all(hits == predictions for hits, predictions in attention.hits)


def test_two_runs_do_not_write_one_directory(cli: Callable[..., Any], place: Path) -> None:
    with BenchDirectory(place / "out", {}, {}):
        result = cli("task=bench", *SMALL, "task.pipelines=[prompt_lookup]")
        assert result.status == 2 and "another run writes" in result.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task.pipelines=[sufix]"], "task.pipelines: pipeline: unknown pipeline 'sufix', did you mean 'suffix'?"),
        (['task.pipelines=["suffix drafter.kep=1"]'], "drafter.kep: unknown option of drafter 'suffix'"),
        (['task.pipelines=["suffix max_new_tokens=3"]'], "max_new_tokens is of the whole run"),
        (['task.pipelines=["suffix model.dtype=bfloat16"]'], "model.dtype is of the whole run"),
        (['task.pipelines=["drafter=suffix"]'], "must begin with the name of a pipeline"),
        (["task.pipelines=[suffix,suffix]"], "'suffix' stands there twice"),
        (["task.pipelines=3"], "must be a list of pipelines"),
        (["task.pipelines=[]"], "must be a list of pipelines"),
        (["task.pipelines=[suffix]", "drafter=suffix"], "drafter: task.pipelines says what is compared"),
        (["task.pipelines=[suffix]", "pipeline=suffix"], "pipeline: task.pipelines says what is compared"),
        (["task.temperatures=[-1]"], "task.temperatures: -1 must be 0 or more and finite"),
        (["task.temperatures=[0,0]"], "must be different numbers"),
        (["task.batch_sizes=[]"], "must be different numbers"),
        (["task.batch_sizes=[0]"], "task.batch_sizes: 0 must be 1 or more"),
        (["task.rounds=0"], "task.rounds: 0 must be 1 or more"),
        (["compare=true"], "compare: task=bench always compares"),
        (["prompt_file=nowhere.jsonl"], "nowhere.jsonl does not exist"),
    ],
)
def test_bad_input_is_told_before_a_model_is_loaded(
    cli: Callable[..., Any], own_directory: Path, options: list[str], message: str
) -> None:
    result = cli("task=bench", "model.target=there_is_none", "output_dir=out", *options)
    assert result.status == 2 and message in result.error, result.err
    assert not (own_directory / "out").exists()


def test_no_prompt_fits(cli: Callable[..., Any], place: Path) -> None:
    result = cli("task=bench", *SMALL[:2], "max_new_tokens=510", "output_dir=out", "task.pipelines=[prompt_lookup]")
    assert result.status == 2 and "exceed the context of 512" in result.error
    assert result.out == ""


def test_a_pipeline_that_cannot_be_built_is_left_out(cli: Callable[..., Any], place: Path) -> None:
    pipelines = 'task.pipelines=["eagle_tree drafter.checkpoint=nowhere", prompt_lookup]'
    result = cli("task=bench", *SMALL, pipelines, "prompt_limit=1")
    assert result.status == 1
    assert "Traceback" not in result.err and "not answered" in result.out and "not started" in result.out
    run = read_bench(place / "out")
    assert {answer.candidate for answer in run.answers} == {"vanilla", "prompt_lookup"}
    [failure] = run.failures
    assert (failure.candidate, failure.reason, failure.prompt) == (
        "eagle_tree drafter.checkpoint=nowhere",
        "not_started",
        None,
    )


def test_end_tokens_end_answers(cli: Callable[..., Any], place: Path) -> None:
    """A model whose every token is an end token: answers of one token."""
    (place / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(480))}))
    small = [option for option in SMALL if option != "ignore_eos=true"]
    result = cli("task=bench", *small, "task.pipelines=[prompt_lookup]")
    assert result.status == 0, result.err
    run = read_bench(place / "out")
    assert {(a.new_tokens, a.finish_reason) for a in run.answers} == {(1, "stop")}
