"""``task=accuracy`` on a tiny random checkpoint, whose own layers draft."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.accuracy.figures import figures_of
from spec_sdk.accuracy.metrics import metric
from spec_sdk.accuracy.records import read_accuracy
from spec_sdk.prompts import COPIES_SAMPLE, SHIPPED, SUMMARIES_SAMPLE
from tests.support.text_checkpoints import write_text_checkpoint

PROMPTS: list[dict[str, Any]] = [
    {"id": 1, "prompt": "The grey cat sat on the mat.", "reference": "A cat sat."},
    {"id": 2, "turns": ["One two three four five six."], "reference": "Numbers up to six.", "task": "counting"},
    {"id": "three", "prompt": "Nothing happened.", "reference": "Nothing."},
]
SMALL = ["task=accuracy", "pipeline=sd_chain", "verifier=chain_rejection", "policy=heuristic", "sampling.temperature=1"]
SMALL += ["model.target=model", "model.draft=cut", "model.draft_layers=[0]", "prompt_file=p.jsonl", "max_new_tokens=12"]
SMALL += ["ignore_eos=true", "chat=false", "output_dir=out"]


@pytest.fixture
def place(own_directory: Path) -> Path:
    (own_directory / "model").mkdir()
    write_text_checkpoint(own_directory / "model", max_position_embeddings=512)
    write(own_directory, PROMPTS)
    return own_directory


def write(place: Path, lines: list[dict[str, Any]]) -> None:
    (place / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def records(place: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (place / "out" / "bench.jsonl").read_text().splitlines())
    return [line for line in lines if line["record"] == kind]


def test_samplers_beside_one_another(cli: Callable[..., Any], place: Path) -> None:
    result = cli(*SMALL, "task.scales=[1e4,10]", "task.seeds=2", "task.cue=Summary:", "task.metrics=[rouge1,wer]")
    assert result.status == 0, result.err
    for said in ("ROUGE-1 (↑)", "WER (↓)", "mean ± deviation over 2 seeds", "sigmoid ±10000", "6 of 6"):
        assert said in result.out
    assert "24 of 24 answers" in result.err

    run = read_accuracy(place / "out")
    found = {each.choice.candidate: each for each in figures_of(run)}
    assert list(found) == ["reference", "exact", "sigmoid ±10000", "sigmoid ±10"]
    assert {each.answers for each in found.values()} == {2 * 3}
    # the proof of the paper's claim for its exact method, and a sign that the sigmoid was at work
    assert found["exact"].equal == found["exact"].compared == 6
    assert found["exact"].changes["rouge1"].mean == 0
    assert found["sigmoid ±10000"].equal < 6
    tokens = {(a.candidate, a.round, a.prompt): tuple(a.tokens) for a in run.answers}
    assert all(tokens["exact", seed, prompt] == tokens["reference", seed, prompt] for _, seed, prompt in tokens)
    # another seed, other answers
    assert any(tokens["reference", 0, p] != tokens["reference", 1, p] for p in ("1", "2", "three"))
    settings = {name: run.bench.candidates[name].plugins or {} for name in found}
    assert settings["sigmoid ±10"]["sampler"] == {"name": "sigmoid", "alpha": -10.0, "beta": 10.0}
    assert [(c.alpha, c.beta) for c in run.choices] == [(None, None), (None, None), (-1e4, 1e4), (-10.0, 10.0)]
    assert all(plugins["policy"]["name"] == "heuristic" for plugins in settings.values())
    for each in found.values():
        assert each.step_s is not None and each.step_s[0] > 0 and each.sampling_s is not None
    for answer in run.answers:
        assert answer.verdict_s is not None and answer.stage_s is not None and answer.verdict_s2 is not None
        assert 0 < answer.verdict_s < answer.stage_s["verify"]
        assert 0 < answer.verdict_s2 <= answer.verdict_s**2

    assert [record["reference"] for record in records(place, "reference")] == [line["reference"] for line in PROMPTS]
    references = {record["prompt"]: record["reference"] for record in records(place, "reference")}
    for name in ("rouge1", "wer"):
        score = metric(name).scorer()
        assert all(a.scores[name] == score(a.text, references[a.prompt]) for a in run.answers)
    assert all(len(a.text) > 0 for a in run.answers)
    tables = (place / "out" / "accuracy.md").read_text()
    assert "Tables 2 and 7" in tables and "Table 8" not in tables and "'Summary:' below each" in tables
    summary = json.loads((place / "out" / "summary.json").read_text())
    assert [each["choice"]["candidate"] for each in summary["figures"]] == list(found)


def test_the_cue_stands_below_the_prompt(cli: Callable[..., Any], place: Path) -> None:
    write(place, PROMPTS[:1])
    lengths = []
    for cue in ([], ["task.cue=Summary:"]):
        options = [*SMALL, "task.samplers=[reference]", "task.seeds=1", *cue, f"output_dir=out{len(cue)}"]
        assert cli(*options).status == 0
        lengths.append(read_accuracy(place / f"out{len(cue)}").answers[0].prompt_tokens)
    assert lengths[0] < lengths[1]


def test_depths_in_one_run(cli: Callable[..., Any], place: Path) -> None:
    options = [option for option in SMALL if not option.startswith("policy")]
    result = cli(*options, "task.depths=[2,4]", "task.samplers=[reference,exact]", "task.seeds=1", "compare=true")
    assert result.status == 0, result.err
    found = figures_of(read_accuracy(place / "out"))
    names = [f"{name} γ={depth}" for depth in (2, 4) for name in ("reference", "exact")]
    assert [each.choice.candidate for each in found] == ["vanilla", *names]
    assert all(each.equal == each.compared == 3 for each in found[1:])
    run = read_accuracy(place / "out")
    for answer in run.answers:
        deepest = 0 if answer.candidate == "vanilla" else int(answer.candidate[-1])
        assert answer.depths is not None and len(answer.depths) == deepest
    assert "layout of the paper's Table 8" in (place / "out" / "accuracy.md").read_text()


def test_a_sigmoid_without_drawn_tokens_is_remarked(cli: Callable[..., Any], place: Path) -> None:
    options = [o for o in SMALL if not o.startswith(("pipeline", "verifier", "policy", "model.draft"))]
    result = cli(
        *options, "pipeline=prompt_lookup", "policy=fixed", "task.samplers=[reference,sigmoid]", "task.seeds=1"
    )
    assert result.status == 0, result.err
    assert "sigmoid: every answer is reference's." in result.out and "drafter=prompt_lookup" in result.out


def test_prompts_texts_are_left_out_on_demand(cli: Callable[..., Any], place: Path) -> None:
    assert cli(*SMALL, "task.samplers=[reference]", "task.seeds=1", "save_prompts=false").status == 0
    assert records(place, "reference") == [] and len(records(place, "answer")) == 3


def test_a_run_that_is_over_shows_its_tables_again(cli: Callable[..., Any], place: Path) -> None:
    command = [*SMALL, "task.seeds=1"]
    first = cli(*command)
    before = (place / "out" / "bench.jsonl").read_bytes()
    (place / "model" / "model.safetensors").unlink()
    again = cli(*command)
    assert (again.status, again.out) == (0, first.out)
    assert (place / "out" / "bench.jsonl").read_bytes() == before
    # its tables, from the records alone
    (place / "out" / "accuracy.md").unlink()
    text = (place / "p.jsonl").read_text().replace("A cat sat.", "A dog sat.")
    (place / "p.jsonl").write_text(text)
    other = cli(*command)
    assert other.status == 2 and "references.sha256" in other.error


DIFFERENT = {
    "task.seeds=2": "rounds: 1 there, 2 here",
    "task.cue=Summary:": "cue: None there, Summary: here",
    "policy=fixed": "pipeline: ",
}


def test_a_directory_of_other_settings_is_refused(cli: Callable[..., Any], place: Path) -> None:
    command = [*SMALL, "task.samplers=[reference,exact]", "task.seeds=1", "prompt_limit=1"]
    assert cli(*command).status == 0
    for other, said in DIFFERENT.items():
        name = other.partition("=")[0]
        result = cli(*(option for option in command if not option.startswith(f"{name}=")), other)
        assert result.status == 2 and said in result.error, result.err


def test_a_killed_run_goes_on(cli: Callable[..., Any], place: Path) -> None:
    """No finished answer is made again, and what comes of it has all answers once."""
    write(place, [{**line, "id": f"{line['id']}-{i}"} for i in range(4) for line in PROMPTS])
    command = [*SMALL, "task.samplers=[reference,exact]", "task.seeds=1", "backend.threads=1", "max_new_tokens=24"]
    command.remove("max_new_tokens=12")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "spec_sdk", *command], env=environment, stderr=subprocess.DEVNULL)
    file = place / "out" / "bench.jsonl"
    while process.poll() is None and (not file.exists() or file.read_bytes().count(b'"record": "answer"') < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = file.read_bytes()
    assert left.count(b'"record": "answer"') >= 5
    assert cli(*command).status == 0
    assert file.read_bytes().startswith(left.rpartition(b"\n")[0])
    asked = [(a["candidate"], a["round"], a["prompt"]) for a in records(place, "answer")]
    assert len(asked) == len(set(asked)) == 2 * 12
    assert len(records(place, "reference")) == 12
    assert {each.answers for each in figures_of(read_accuracy(place / "out"))} == {12}


REFUSED = {
    "sampling.temperature=0": "sampling.temperature: at 0 answers are greedy, whatever the sampler",
    "sampler=exact": "sampler: task.samplers says what is compared",
    "task.samplers=[referense]": "task.samplers: unknown sampler 'referense', did you mean 'reference'",
    "task.samplers=[]": "task.samplers: name one at least",
    "task.samplers=[exact,exact]": "must be different values",
    'task.samplers=["exact drafter.width=2"]': "drafter.width=2 is of the whole run",
    'task.samplers=["exact sampler.kernel=torch"]': "kernel",
    "task.scales=[0]": "task.scales: 0.0 must be above 0",
    "task.depths=[3]": "policy: task.depths says how deep is drafted",
    "task.metrics=[rogue1]": "task.metrics: unknown metric 'rogue1', did you mean 'rouge1'",
    "task.seeds=0": "task.seeds: 0 must be 1 or more",
    "prompt=Hello": "prompt: task=accuracy asks the prompts of a file with references",
    "prompt_file=spec_bench_sample": "prompt '81' has no text 'reference'",
    "verifier=greedy": "verifier",
    "pipeline=vanilla": "drafter: 'none' drafts nothing",
}


def test_bad_input_is_refused_in_a_line(cli: Callable[..., Any], place: Path) -> None:
    for other, said in REFUSED.items():
        name = other.partition("=")[0]
        taken = {"prompt": {"prompt", "prompt_file"}, "pipeline": {"pipeline", "verifier", "policy"}}.get(name, {name})
        result = cli(*(option for option in SMALL if option.partition("=")[0] not in taken), other)
        assert result.status == 2 and said in result.error, (other, result.err)
        assert not (place / "out").exists()


def test_a_reference_of_several_turns_is_refused(cli: Callable[..., Any], place: Path) -> None:
    write(place, [{"id": 7, "turns": ["a", "b"], "reference": "c"}])
    assert "prompt '7' has 2 turns" in cli(*SMALL).error
    write(place, [{"id": 7, "messages": [{"role": "user", "content": "a"}], "reference": "c"}])
    assert "prompt '7' has messages" in cli(*SMALL, "task.cue=Go").error
    write(place, [{"id": 7, "prompt": "a", "reference": ["c"]}])
    assert "prompt '7' has no text 'reference'" in cli(*SMALL).error


def test_a_prompt_that_is_too_long_is_listed(cli: Callable[..., Any], place: Path) -> None:
    write(place, [*PROMPTS[:1], {"id": "long", "prompt": "word " * 600, "reference": "words"}])
    result = cli(*SMALL, "task.samplers=[reference,exact]", "task.seeds=1")
    assert result.status == 0, result.err
    assert "too long: prompt: its" in result.out
    assert {each.answers for each in figures_of(read_accuracy(place / "out"))} == {1}


@pytest.mark.parametrize("name", [SUMMARIES_SAMPLE, COPIES_SAMPLE])
def test_the_samples_have_references(name: str) -> None:
    lines = [json.loads(line) for line in SHIPPED[name].read_text(encoding="utf-8").splitlines()]
    assert len(lines) >= 8 and len({line["id"] for line in lines}) == len(lines)
    for line in lines:
        assert line["reference"].strip() and line["prompt"].strip()
        assert len(line["reference"]) < len(line["prompt"])
