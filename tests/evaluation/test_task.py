"""``task=eval`` on small benchmarks, by the harness itself."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from spec_sdk import Engine
from spec_sdk.errors import UserError
from tests.evaluation.conftest import LAYERS, QUESTIONS

Cli = Callable[..., Any]
Model = tuple[Path, PreTrainedModel]


def metrics(place: Path) -> Any:
    return json.loads((place / "out" / "metrics.json").read_text())


def samples(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "out" / "samples.jsonl").read_text().splitlines()]


@pytest.fixture
def evaluate(cli: Cli, model: Model, benchmarks: Path, harness: None) -> Cli:
    """``evaluate("task.tasks=…", …)`` with the tiny model."""

    def run(*options: str) -> Any:
        return cli("task=eval", f"model.target={model[0]}", "output_dir=out", "task.include_path=tasks", *options)

    return run


def test_answers(evaluate: Cli, own_directory: Path, own_answers: list[str]) -> None:
    """Of a pipeline that speculates on tokens: plain decoding's, one of three right; and what they cost."""
    result = evaluate("task.tasks=tiny_generate", "pipeline=suffix", "compare=true")
    assert result.status == 0, result.err
    found = metrics(own_directory)
    assert found["summary"]["scores"] == {"tiny_generate": {"exact_match": pytest.approx(1 / 3)}}
    assert found["summary"]["questions"] == {"tiny_generate": 3}
    assert found["summary"]["standard_errors"]["tiny_generate"]["exact_match"] > 0
    assert found["comparison"]["vanilla"]["scores"] == found["summary"]["scores"]
    assert found["summary"]["new_tokens"] > 0 and found["summary"]["drafted"] > 0
    assert found["summary"]["loglikelihood"]["scored_by"] is None
    assert found["guarantee"] == "exact" and found["pipeline"] == "suffix"
    assert [sample["answers"] for sample in samples(own_directory)] == [[text] for text in own_answers]
    assert "0.3333 ± " in result.err and "tiny_generate: exact_match" in result.err
    assert all(len(line.rstrip()) <= 80 for line in result.err.splitlines() if "tiny_generate" in line)


def test_likelihoods(evaluate: Cli, own_directory: Path) -> None:
    """By whom they were scored is told; all predictions accepted change them, and the exact target's do not."""
    tasks = "task.tasks=[tiny_choose,tiny_read]"
    alspec = ("pipeline=alspec", "predictor.size=2", "attention_verifier.threshold=inf")
    assert evaluate(tasks, "pipeline=vanilla").status == 0
    plain = metrics(own_directory)["summary"]
    assert plain["loglikelihood"] == {"texts": 9, "scored_by": "target", "hit_rate": None}
    assert evaluate(tasks, *alspec, "task.loglikelihood=target").status == 0
    exact = metrics(own_directory)["summary"]
    assert exact["scores"]["tiny_read"]["word_perplexity"] == pytest.approx(
        plain["scores"]["tiny_read"]["word_perplexity"], rel=1e-4
    )
    result = evaluate(tasks, *alspec)
    told = metrics(own_directory)["summary"]
    assert told["loglikelihood"]["scored_by"] == "pipeline, token by token" and told["loglikelihood"]["hit_rate"] == 1
    assert "likelihoods by" in result.err and "100.0 %" in result.err
    ratio = told["scores"]["tiny_read"]["word_perplexity"] / plain["scores"]["tiny_read"]["word_perplexity"]
    assert abs(math.log(ratio)) > 0.001
    assert set(plain["scores"]["tiny_choose"]) == {"acc"} and LAYERS == 3


def test_whole_texts_are_scored_in_windows(model: Model, benchmarks: Path, harness: None) -> None:
    """Each token once, after the last tokens that fit; the first after the token that begins a text."""
    from spec_sdk.evaluation.language_model import EngineModel
    from spec_sdk.evaluation.scoring import Scorer

    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["model.context=12"])
    asked = EngineModel(engine, silent=True)
    text = f"{QUESTIONS[0]}. {QUESTIONS[1]}."
    tokens = engine.tokenizer.encode(text, add_special_tokens=False)
    assert len(tokens) > 22
    scorer, expected, before = Scorer(engine.pipeline), 0.0, [asked.prefix_token_id]
    for first in range(0, len(tokens), 11):
        new = tokens[first : first + 11]
        known = (before + tokens[:first])[-(12 - len(new)) :] if first else before
        expected += scorer.score(known, new).log_probability
    assert asked.loglikelihood_rolling([Asked(text)]) == [pytest.approx(expected, abs=1e-6)]


class Asked:
    """A request of the harness."""

    def __init__(self, *args: Any) -> None:
        self.args = args


def test_sampled_answers(evaluate: Cli, own_directory: Path) -> None:
    """Sampled by the pipeline's parameters, and the same whatever is answered beside them."""
    chosen = ("task.tasks=tiny_generate", "pipeline=vanilla", "sampling.temperature=1")
    answers = []
    for seed, together in ((5, 1), (5, 3), (6, 3)):
        more = (f"sampling.seed={seed}", f"task.max_num_seqs={together}", "task.sampling=pipeline")
        assert evaluate(*chosen, *more).status == 0
        answers.append([sample["answers"] for sample in samples(own_directory)])
    assert answers[0] == answers[1] != answers[2]
    # as the task says: greedily
    assert evaluate(*chosen, "task.limit=1", "save_prompts=false").status == 0
    assert metrics(own_directory)["summary"]["scores"]["tiny_generate"]["exact_match"] == 1
    assert [sample["asked"] for sample in samples(own_directory)] == [None]


def test_a_request(model: Model, harness: None) -> None:
    """Stop texts, the longest answer, and a prompt that has no room."""
    from spec_sdk.evaluation.language_model import EngineModel

    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["model.context=40"])
    asked = EngineModel(engine, seed=3, silent=True)
    request = asked._request(
        "The sky is", {"until": ["\n", ""], "max_gen_toks": 7, "temperature": 0.9, "do_sample": True}
    )
    assert request.options["max_new_tokens"] == 7 and request.options["stop"] == ["\n"]
    assert request.options["sampling"].temperature == 0.9 and request.options["sampling"].seed == 3
    greedy = asked._request("The sky is", {"until": ".", "temperature": 0.9, "do_sample": False})
    assert greedy.options["sampling"].temperature == 0 and greedy.options["sampling"].seed == 4
    long = asked._request(" ".join(QUESTIONS) * 3, {"max_gen_toks": 10})
    assert len(long.prompt) == 30 and list(long.prompt) == engine.tokenizer.encode(" ".join(QUESTIONS) * 3)[-30:]
    assert asked.generate_until([Asked("The sky is", {"until": ["e"], "max_gen_toks": 9})])[0].count("e") == 0
    with pytest.raises(UserError, match="generation option 'num_beams'"):
        asked._request("The sky is", {"num_beams": 5})
    with pytest.raises(UserError, match="the context has 40"):
        asked._loglikelihood_tokens([(None, [5], list(range(20, 70)))])
    assert asked.apply_chat_template([{"role": "user", "content": "hello"}]).startswith("<user>hello")


def test_a_sweep_shows_scores(evaluate: Cli, own_directory: Path) -> None:
    result = evaluate(
        "-m",
        "task.tasks=tiny_generate",
        "pipeline=vanilla,suffix",
        "sweep.metric=scores.tiny_generate.exact_match",
    )
    assert result.status == 0, result.err
    jobs = json.loads((own_directory / "out" / "summary.json").read_text())["jobs"]
    assert [job["metric"] for job in jobs] == [{"scores.tiny_generate.exact_match": pytest.approx(1 / 3)}] * 2
    assert [job["pipeline"] for job in jobs] == ["vanilla", "suffix"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("task.tasks=tiny_generat", "task.tasks: unknown task 'tiny_generat', did you mean 'tiny_generate'?"),
        ("task.include_path=nowhere", "task.include_path: nowhere is no directory"),
        ("task.tasks=tiny_beams", "generation option 'num_beams', which is not offered here"),
        ("prompt=Hello", "prompt: task=eval asks the questions of benchmarks"),
        ("task.tasks=[]", "task.tasks: name a benchmark"),
        ("task.limit=0", "task.limit"),
    ],
)
def test_bad_input(evaluate: Cli, own_directory: Path, option: str, message: str) -> None:
    given = ["task.tasks=tiny_generate"] * (not option.startswith("task.tasks="))
    result = evaluate(*given, option, "pipeline=vanilla")
    assert result.status == 2 and message in result.error
    assert not (own_directory / "out").exists()


def test_without_the_harness(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "lm_eval" else found(name, *of))
    assert cli("task=eval", "task.tasks=gsm8k").error == (
        "task=eval: lm-eval is not installed: pip install 'spec-sdk[eval]'"
    )


def test_its_own_command_line(
    model: Model, benchmarks: Path, harness: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spec_sdk.evaluation.__main__ import main

    overrides = "attention_verifier.threshold=0 predictor.size=2"
    argv = ["lm-eval", "run", "--model", "spec_sdk", "--tasks", "tiny_generate", "--include_path", str(benchmarks)]
    given = f"pipeline=alspec,target={model[0]},overrides={overrides}"
    monkeypatch.setattr("sys.argv", [*argv, "--model_args", given, "--batch_size", "2"])
    assert main() == 0
    assert "0.3333" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*argv, "--model_args", "pipeline=alspek"])
    assert main() == 2
    assert "error: pipeline: unknown pipeline 'alspek'" in capsys.readouterr().err
