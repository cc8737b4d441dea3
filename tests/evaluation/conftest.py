"""A tiny model that spells any text, and benchmarks of a few questions that need no network."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from spec_sdk import Engine
from tests.cli.conftest import cli, own_directory
from tests.support.text_checkpoints import write_text_checkpoint

__all__ = ["cli", "own_directory"]

QUESTIONS = ("The sky over the town is", "Bread is made of flour and", "One two three four five six seven")
LAYERS = 3
TASK = """
task: tiny_{kind}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
KINDS = {
    "generate": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n\\n"], max_gen_toks: 12}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "choose": """
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: " "
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    "read": """
output_type: loglikelihood_rolling
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
""",
    "sample": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 4, do_sample: true, temperature: 0.7}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "filter": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n\\n"], max_gen_toks: 12}
filter_list:
  - {name: first, filter: [{function: regex, regex_pattern: "(.)"}, {function: take_first}]}
  - {name: whole, filter: [{function: take_first}]}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "long": """
output_type: generate_until
doc_to_target: "{{answer}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "empty": """
output_type: generate_until
doc_to_text: ""
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 4}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "guess": """
output_type: loglikelihood
doc_to_target: " {{text[:30]}}"
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
""",
    "beams": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 4, num_beams: 5}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
}


@pytest.fixture
def harness() -> None:
    """Asked for by whatever needs lm-eval itself."""
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("needs the extra eval")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    """A checkpoint, and transformers' model of it."""
    place = tmp_path_factory.mktemp("model")
    return place, write_text_checkpoint(place, num_hidden_layers=LAYERS)


@pytest.fixture(scope="session")
def own_answers(model: tuple[Path, PreTrainedModel]) -> list[str]:
    """What plain decoding answers, by the library."""
    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["chat=false"])
    return [answer.text for answer in engine.generate(list(QUESTIONS), max_new_tokens=12)]


@pytest.fixture
def benchmarks(own_directory: Path, own_answers: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a task ``tiny_<kind>`` of every kind of :data:`KINDS`.

    The right answer to the first question is what the model says, the others' are not.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if importlib.util.find_spec("datasets") is not None:
        datasets: Any = importlib.import_module("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", own_directory / "datasets")
    place = own_directory / "tasks"
    place.mkdir()
    documents: list[dict[str, Any]] = [
        {
            "question": question,
            "answer": own_answers[i] if i == 0 else "42",
            "choices": ["blue and wide", "water"],
            "gold": i % 2,
            "text": f"{question} and so on. " * 6,
        }
        for i, question in enumerate(QUESTIONS)
    ]
    data = place / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    for kind, rest in KINDS.items():
        (place / f"tiny_{kind}.yaml").write_text(TASK.format(kind=kind, data=data) + rest)
    return place


@pytest.fixture
def evaluate(
    cli: Callable[..., Any], model: tuple[Path, PreTrainedModel], benchmarks: Path, harness: None
) -> Callable[..., Any]:
    """``evaluate("task.tasks=…", …)`` with the tiny model."""

    def run(*options: str) -> Any:
        return cli("task=eval", f"model.target={model[0]}", "output_dir=out", "task.include_path=tasks", *options)

    return run
