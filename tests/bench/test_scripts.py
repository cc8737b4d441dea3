"""What scripts share: their options, prompts, answers, reports and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from spec_sdk.bench.answers import Prompt, answer, events_of, long_prompts, spread_prompts, tokens_of
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import PROMPTS, build, pipeline_facts, run_script, script_parser
from spec_sdk.errors import UserError
from spec_sdk.metrics import summarise
from tests.support.text_checkpoints import write_text_checkpoint


def prompts_file(directory: Path) -> Path:
    lines = [{"turns": ["a" * (i + 1), "more"], "task": "rag" if i % 2 else "qa"} for i in range(6)]
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_options_are_those_whose_default_is_given() -> None:
    parser = script_parser("One line.\n\nMore.", count=3, new_tokens=7, output=Path("x.json"))
    assert parser.description == "One line."
    assert vars(parser.parse_args([])) == {
        "prompts": PROMPTS, "count": 3, "new_tokens": 7, "output": Path("x.json"), "overrides": []
    }  # fmt: skip
    typed = parser.parse_intermixed_args(["a=1", "--count", "2", "b=2"])
    assert typed.count == 2 and typed.overrides == ["a=1", "b=2"]
    assert vars(script_parser(None, overrides=None).parse_args([])) == {}
    assert script_parser("", overrides=["c=3"]).parse_args([]).overrides == ["c=3"]


def test_prompts_are_first_turns_evenly_spread(tmp_path: Path) -> None:
    path = prompts_file(tmp_path)
    assert spread_prompts(path, 3) == [Prompt("a", "qa"), Prompt("aaa", "qa"), Prompt("aaaaa", "qa")]
    assert [prompt.text for prompt in spread_prompts(path, 10, longest=2)] == ["a", "aa"]
    with pytest.raises(UserError, match=r"no\.jsonl"):
        spread_prompts(tmp_path / "no.jsonl", 1)


def test_answers_come_with_their_events(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "model")
    pipeline = build("pipeline=vanilla", f"model.target={tmp_path / 'model'}")
    prompts = spread_prompts(prompts_file(tmp_path), 2)
    answers = answer(pipeline, prompts, 3, first_id=5)
    assert [one.prompt for one in answers] == prompts and all(1 <= len(one.tokens) <= 3 for one in answers)
    summary = summarise(events_of(answers))
    assert summary["prompts"] == 2 and summary["new_tokens"] == sum(len(one.tokens) for one in answers)
    assert {event["request"] for event in events_of(answers)} == {5, 6}
    long = long_prompts(pipeline, prompts_file(tmp_path), 0, 10**4)
    assert [prompt.task for prompt in long] == ["rag"] * 3
    shortest = len(tokens_of(pipeline, long[1]))
    assert long_prompts(pipeline, prompts_file(tmp_path), shortest, shortest) == [long[1]]
    with pytest.raises(UserError, match="no prompt of 9000 to 9999 tokens in rag, summarization$"):
        long_prompts(pipeline, prompts_file(tmp_path), 9000, 9999)
    facts = pipeline_facts(pipeline)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["dtype"] == "float32" and facts["torch"] == torch.__version__ and facts["target"]


def test_a_report_is_written_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "report.json"
    write_report(path, {"a": [1, 2]})
    assert json.loads(path.read_text()) == {"a": [1, 2]} and capsys.readouterr().out == f"written: {path}\n"


def test_bad_input_is_a_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    def refuses() -> int:
        raise UserError("model.dtype: 'x' is none")

    assert run_script(refuses) == 2 and run_script(lambda: 1) == 1
    assert capsys.readouterr().err == "error: model.dtype: 'x' is none\n"
