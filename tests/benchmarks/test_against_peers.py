"""The benchmark beside other programs: it runs with those that are installed, and computes what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import against_peers
from benchmarks.peers.figures import report_of
from benchmarks.peers.programs import LLAMA, TRANSFORMERS, Interpreters, Program, programs
from spec_sdk.bench.peers.weights import Weights
from spec_sdk.bench.peers.worker import Timing, Worker
from tests.bench.peers.echo import ECHO
from tests.support.text_checkpoints import write_text_checkpoint


@pytest.mark.full
@pytest.mark.parametrize(
    "names",
    [
        ["transformers", "spec-sdk vanilla"],
        ["transformers", "transformers, prompt lookup", "spec-sdk vanilla", "spec-sdk default pipeline"],
    ],
)
def test_installed_peers_answer_and_missing_ones_are_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    write_text_checkpoint(tmp_path / "model", max_position_embeddings=256)
    prompts = [{"turns": [f"One {word} and two {word}s and"], "task": task} for word in ("ox", "cow") for task in "ab"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    options = [f"--model={tmp_path / 'model'}", f"--file={tmp_path / 'prompts.jsonl'}", "--dtype=float32"]
    options += ["--prompts=2", "--new-tokens=32", "--rounds=1", f"--output={tmp_path / 'report.json'}"]
    assert against_peers.main([*options, "--only", "llama.cpp F32", *names]) == 0
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert list(report["programs"]) == names
    assert [prompt["task"] for prompt in report["prompts"]] == ["a", "b"]
    for row in report["programs"].values():
        # end tokens end no answer: 2 prompts of 32 tokens
        assert row["new_tokens"] == 64 and len(row["rounds_tokens_per_s"]) == 1
        assert row["answers_equal_to_plain"] == row["ratios"]["transformers"]["answers_equal"] == 2
        assert 0 < row["first_token_s"]["sum"] < row["seconds"]
        assert set(row["task_tokens_per_s"]) == {"a", "b"}
        assert row["facts"]["threads"] >= 1 and row["facts"]["versions"]["torch"] and row["facts"]["resident_bytes"] > 0
    assert report["programs"]["spec-sdk vanilla"]["facts"]["pipeline"] == "vanilla"
    shown = capfd.readouterr()
    assert "skipped: llama.cpp F32: it takes a GGUF file; give one as --model" in shown.err
    assert "  spec-sdk vanilla " in shown.out


def timing(tokens: list[int], first_s: float, total_s: float, first: int = 1) -> Timing:
    return Timing(tokens, first_s, first, total_s)


def program(name: str, plain: str | None = None, adaptive: bool = False) -> Program:
    return Program(name, "bfloat16 / F16", [], plain or name, adaptive=adaptive)


def test_figures_of_timings_made_up() -> None:
    ours, lookup = "spec-sdk vanilla", "spec-sdk prompt_lookup policy=adaptive"
    every = [program(TRANSFORMERS), program(f"{LLAMA} F16"), program(ours), program(lookup, ours, adaptive=True)]
    answers = {
        TRANSFORMERS: [[timing([1] * 8, 2, 4), timing([2] * 8, 1, 4)]] * 2,
        ours: [[timing([1] * 8, 1, 2), timing([2] * 8, 1, 4)], [timing([1] * 8, 1, 2), timing([2] * 8, 1, 8)]],
        lookup: [[timing([1] * 8, 1, 4, first=3), timing([3] * 8, 1, 4)]] * 2,
    }
    figures, aims = report_of(every, answers, ["chat", "code"])
    assert list(figures) == [TRANSFORMERS, ours, lookup], "what did not answer has no figures"
    assert figures[TRANSFORMERS]["tokens_per_s"] == 2
    mine = figures[ours]
    assert mine["tokens_per_s"] == 32 / 16 and mine["rounds_tokens_per_s"] == [16 / 6, 16 / 10]
    assert mine["prompt_tokens_per_s"] == {"median": (4 + 1.5) / 2, "quartiles": [2.125, 3.375]}
    assert mine["first_token_s"]["median"] == 1 and mine["decode_tokens_per_s"] == 28 / 12
    assert mine["task_tokens_per_s"] == {"chat": 4, "code": 16 / 12}
    assert mine["ratios"][TRANSFORMERS] == {
        "tokens_per_s": 1,
        "decode_tokens_per_s": (28 / 12) / (28 / 10),
        "answers_equal": 2,
    }
    assert figures[lookup]["ratios"][TRANSFORMERS]["answers_equal"] == 1
    # the first three tokens came together: they are not counted as decoded
    assert figures[lookup]["decode_tokens_per_s"] == (5 + 7) / 6
    assert (mine["answers_equal_to_plain"], figures[lookup]["answers_equal_to_plain"]) == (2, 1)
    assert [(aim["program"], aim["over"], aim["ratio"], aim["reached"]) for aim in aims] == [
        (ours, TRANSFORMERS, 1, False),
        (lookup, ours, 1, True),
    ]


def test_a_program_that_ends_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    ends = ECHO.replace(
        "def answer(request, take):",
        "def answer(request, take):\n    if request.tokens[0] == 9: sys.exit('out of memory')",
    )
    with (
        Worker([sys.executable, "-c", ends], {"MINE": "1"}) as one,
        Worker([sys.executable, "-c", ECHO], {"MINE": "2"}) as two,
    ):
        answers = against_peers.measure({"one": one, "two": two}, [[1, 2, 3], [9, 2, 3]], 3, 1)
    assert list(answers) == ["two"] and len(answers["two"][0]) == 2
    assert "left out: one: out of memory" in capsys.readouterr().err


def test_turns_give_each_prompt_to_all_and_begin_with_another_program() -> None:
    taken = list(against_peers.turns(["a", "b", "c"], [[1], [2]], 2))
    assert len(taken) == 12 and len({(round_, prompt[0], name) for round_, prompt, name in taken}) == 12
    assert [name for _, _, name in taken[::3]] == ["a", "b", "b", "c"]


def test_ours_are_started_by_the_command_line(tmp_path: Path) -> None:
    weights = Weights(tmp_path, tmp_path / "f16.gguf", tmp_path / "q.gguf", 4)
    every = programs(weights, "bfloat16", Interpreters(), 100, 64, tmp_path)
    ours = [p for p in every if p.name.startswith("spec-sdk")]
    assert len(ours) == 8 and len({p.name for p in every}) == len(every) == 14
    assert all(p.command[1:4] == ["-m", "spec_sdk", "task=answer_requests"] for p in ours)
    assert [p.plain for p in ours] == ["spec-sdk vanilla"] * 4 + ["spec-sdk vanilla 4-bit"] * 4
