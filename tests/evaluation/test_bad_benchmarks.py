"""Benchmarks that cannot be asked: one line, which names them, before a model answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Engine
from tests.evaluation.conftest import QUESTIONS

Cli = Callable[..., Any]
PLAIN: Mapping[str, Any] = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHOICES: Mapping[str, Any] = {
    **PLAIN,
    "output_type": "multiple_choice",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
GENERATION = {"until": ["."], "max_gen_toks": 4}


@pytest.fixture
def bench(evaluate: Cli, benchmarks: Path) -> Cli:
    """``bench(yaml, option…)``: task ``bad``, whose YAML (JSON is YAML too) is :data:`PLAIN` with changes."""

    def run(
        changed: Mapping[str, Any],
        *options: str,
        data: str = "documents.jsonl",
        code: str = "",
        called: str = "process_docs",
    ) -> Any:
        task = {"task": "bad", "dataset_kwargs": {"data_files": {"test": str(benchmarks / data)}}, **PLAIN, **changed}
        function = f"\n{called}: !function {code}\n" if code else ""
        text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in task.items())
        (benchmarks / "bad.yaml").write_text(text + function)
        return evaluate("task.tasks=bad", "pipeline=vanilla", *options)

    return run


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unsafe_code": True}, "bad runs code that the model writes (unsafe_code), which is not offered here"),
        ({"doc_to_image": "picture"}, "bad shows images or plays sounds"),
        ({"test_split": "validation"}, "bad: it asks for 'validation', which its data do not have"),
        ({"doc_to_text": "{{question"}, "bad: TemplateSyntaxError: unexpected end of template"),
        ({"doc_to_target": "{{nothing}}"}, "bad: UndefinedError: 'nothing' is undefined"),
        ({"output_type": "gen"}, "bad: ValueError: Got invalid output_type 'gen'"),
        (
            {"metric_list": [{"metric": "exact_mach", "aggregation": "mean"}]},
            "'exact_mach', did you mean 'exact_match'?",
        ),
        (
            {"metric_list": [{"metric": "acc", "aggregation": "meen"}]},
            "bad: the aggregation of its metric 'acc' is not",
        ),
        ({"generation_kwargs": {**GENERATION, "temperature": "hot"}}, "bad: ValueError: could not convert string"),
        ({"generation_kwargs": {**GENERATION, "max_gen_toks": 0}}, "bad, document 0: max_new_tokens: 0 must be 1"),
        (
            {"generation_kwargs": {**GENERATION, "do_sample": True, "temperature": -1}},
            "bad, document 0: sampling.temperature: -1.0 must be 0 (greedy) or more",
        ),
        ({"dataset_kwargs": {"data_files": {"test": "nowhere.jsonl"}}}, "bad: its data cannot be had: Unable to find"),
        ({**CHOICES, "doc_to_choice": ["", "b"]}, "bad: IndexError: string index out of range: is one of its texts"),
        ({**CHOICES, "doc_to_choice": ["b", "c" * 50]}, "bad, document 0: model.context: a text of "),
    ],
)
def test_a_task(bench: Cli, own_directory: Path, changed: Mapping[str, Any], message: str) -> None:
    result = bench(changed, "model.context=32")
    assert result.status == 2 and message in result.error, result.err
    assert result.error.startswith("task.tasks: bad") and "Traceback" not in result.err
    assert not (own_directory / "out").exists()


def test_a_late_document(bench: Cli, benchmarks: Path) -> None:
    """It is found before the others are answered."""
    documents = [
        *[{"question": text, "choices": ["a", "b"]} for text in QUESTIONS],
        {"question": "x", "choices": ["", "b"]},
    ]
    (benchmarks / "late.jsonl").write_text("".join(json.dumps({**each, "gold": 0}) + "\n" for each in documents))
    late = {**CHOICES, "doc_to_choice": "{{choices}}", "target_delimiter": ""}
    result = bench(late, data="late.jsonl")
    assert result.error == "task.tasks: bad, document 3: a text that has no token is to be scored"
    assert "scoring" not in result.err


def test_data_that_are_no_json(bench: Cli, benchmarks: Path) -> None:
    (benchmarks / "broken.jsonl").write_text('{"question": 1\n')
    result = bench({}, data="broken.jsonl")
    assert result.status == 2
    assert result.error.startswith("task.tasks: bad: DatasetGenerationError") and "JSON parse error" in result.error


def test_a_file_that_is_no_yaml(evaluate: Cli, benchmarks: Path) -> None:
    (benchmarks / "broken.yaml").write_text("task: broken\ndataset_path: [json\n")
    assert evaluate("task.tasks=broken").error == "task.tasks: tasks/broken.yaml is no YAML of a task 'broken'"


def test_the_one_of_several(bench: Cli) -> None:
    result = bench({"doc_to_target": "{{nothing}}"}, "task.tasks=[tiny_generate,bad]")
    assert result.status == 2 and result.error == "task.tasks: bad: UndefinedError: 'nothing' is undefined"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import a_package_of_nobody.part", "it needs the Python package a_package_of_nobody: pip install a_package"),
        ("raise AssertionError('`antlr4-python3-runtime==4.11` is required')", "and spec-sdk's Hydra an earlier one"),
    ],
)
def test_code_that_does_not_run(bench: Cli, benchmarks: Path, code: str, message: str) -> None:
    (benchmarks / "own_code.py").write_text(f"{code}\ndef documents(data): return data\n")
    result = bench({}, code="own_code.documents")
    assert result.status == 2 and message in result.error


def test_more_examples_than_there_are(bench: Cli) -> None:
    result = bench({"fewshot_split": "test"}, "task.num_fewshot=3")
    assert result.status == 2
    assert result.error == "task.num_fewshot: 3 examples are to stand before a question, and bad has 2"
    assert bench({"fewshot_split": "test"}, "task.num_fewshot=2").status == 0


@pytest.mark.parametrize("asked", ["generate", "check"])
def test_a_fault_of_ours_is_not_hidden(bench: Cli, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Engine, asked, fail)
    result = bench({})
    assert result.status == 1 and "KeyError: 'ours'" in result.err


def test_answers_that_a_benchmark_cannot_score(bench: Cli, benchmarks: Path) -> None:
    (benchmarks / "own_code.py").write_text("def score(document, answers): return answers[7]\n")
    result = bench({}, code="own_code.score", called="process_results")
    assert result.status == 2
    assert result.error.startswith("task.tasks: bad: the answers cannot be scored: IndexError: list index out of range")
