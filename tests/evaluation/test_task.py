"""``task=eval`` on small benchmarks, by the harness itself."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from spec_sdk import Engine
from spec_sdk.errors import UserError
from tests.evaluation.conftest import LAYERS, QUESTIONS
from tests.evaluation.test_scoring import by_transformers
from tests.support.text_checkpoints import write_text_checkpoint

Cli = Callable[..., Any]
Model = tuple[Path, PreTrainedModel]


def metrics(place: Path) -> Any:
    return json.loads((place / "out" / "metrics.json").read_text())


def samples(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "out" / "samples.jsonl").read_text().splitlines()]


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
    result = evaluate(tasks, *alspec, "compare=true")
    told = metrics(own_directory)["summary"]
    assert metrics(own_directory)["comparison"]["vanilla"]["scores"] == plain["scores"]
    assert told["loglikelihood"]["scored_by"] == "pipeline, token by token" and told["loglikelihood"]["hit_rate"] == 1
    assert "likelihoods by" in result.err and "100.0 %" in result.err
    ratio = told["scores"]["tiny_read"]["word_perplexity"] / plain["scores"]["tiny_read"]["word_perplexity"]
    assert abs(math.log(ratio)) > 0.001
    assert set(plain["scores"]["tiny_choose"]) == {"acc"} and LAYERS == 3


def test_whole_texts_are_scored_in_windows(model: Model, harness: None) -> None:
    """Each token once, after the last tokens that fit; the first after the token that begins a text."""
    from spec_sdk.evaluation.language_model import EngineModel

    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["model.context=12"])
    asked = EngineModel(engine, silent=True)
    text = f"{QUESTIONS[0]}. {QUESTIONS[1]}."
    tokens = engine.tokenizer.encode(text, add_special_tokens=False)
    assert len(tokens) > 24
    expected, whole = 0.0, [asked.prefix_token_id, *tokens]
    for first in range(0, len(tokens), 12):
        new = tokens[first : first + 12]
        # the last token of a window is scored, and not fed
        expected += by_transformers(model[1], whole[: first + 1 + len(new)][-13 : -len(new)], new)[0]
    assert asked.loglikelihood_rolling([Asked(text)]) == [pytest.approx(expected, abs=1e-3)]


def test_a_text_that_is_longer_than_the_context(model: Model, harness: None) -> None:
    """As the harness's other models score it: the context is full of what is fed, the last token is not."""
    from spec_sdk.evaluation.language_model import EngineModel

    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["model.context=32"])
    asked = EngineModel(engine, silent=True)
    context, text = list(range(20, 62)), [70, 71, 3]
    ((found, _),) = asked._loglikelihood_tokens([(None, context, text)])
    assert found == pytest.approx(by_transformers(model[1], context[-30:], text)[0], abs=1e-3)
    assert asked.prompts_cut == 1
    whole = list(range(20, 52))
    ((found, _),) = asked._loglikelihood_tokens([(None, context, whole)])
    assert found == pytest.approx(by_transformers(model[1], context[-1:], whole)[0], abs=1e-3)
    with pytest.raises(UserError, match="a text of 33 tokens is to be scored, and the context has 32"):
        asked._loglikelihood_tokens([(None, context, [*whole, 5])])
    # a context that has no token, as one of blanks may be
    ((found, _),) = asked._loglikelihood_tokens([(None, [], text)])
    assert found == pytest.approx(by_transformers(model[1], [asked.prefix_token_id], text)[0], abs=1e-3)


@pytest.mark.parametrize("pipeline", ["vanilla", "alspec"])
def test_a_model_whose_context_is_full(tmp_path: Path, harness: None, pipeline: str) -> None:
    from spec_sdk.evaluation.language_model import EngineModel

    model = write_text_checkpoint(tmp_path, max_position_embeddings=32)
    overrides = ["predictor.size=4", "attention_verifier.threshold=0"] if pipeline == "alspec" else []
    asked = EngineModel(Engine.from_pipeline(pipeline, target=tmp_path, overrides=overrides), silent=True)
    whole = list(range(20, 52))
    found = asked._loglikelihood_tokens([(None, [5, 6], whole), (None, whole, [70, 71])])
    assert found[0][0] == pytest.approx(by_transformers(model, [6], whole)[0], abs=1e-3)
    assert found[1][0] == pytest.approx(by_transformers(model, whole[-31:], [70, 71])[0], abs=1e-3)


class Asked:
    """A request of the harness."""

    def __init__(self, *args: Any) -> None:
        self.args = args


def test_sampled_answers(evaluate: Cli, own_directory: Path) -> None:
    """Sampled by the pipeline's parameters, and the same whatever is answered beside them."""
    chosen = ("task.tasks=tiny_generate", "pipeline=vanilla")
    answers = []
    for seed, together in ((5, 1), (5, 3), (6, 3)):
        more = (
            "sampling.temperature=1",
            f"sampling.seed={seed}",
            f"task.max_num_seqs={together}",
            "task.sampling=pipeline",
        )
        assert evaluate(*chosen, *more).status == 0
        answers.append([sample["answers"] for sample in samples(own_directory)])
    assert answers[0] == answers[1] != answers[2]
    # as the task says: greedily
    assert evaluate(*chosen, "task.limit=1", "save_prompts=false").status == 0
    assert metrics(own_directory)["summary"]["scores"]["tiny_generate"]["exact_match"] == 1
    assert [sample["asked"] for sample in samples(own_directory)] == [None]


def test_texts_that_are_not_to_be_kept(evaluate: Cli, own_directory: Path) -> None:
    """Of a text that is scored whole the right answer is the text."""
    assert evaluate("task.tasks=[tiny_read,tiny_choose]", "save_prompts=false").status == 0
    assert not any(question in (own_directory / "out" / "samples.jsonl").read_text() for question in QUESTIONS)
    assert [sample["right"] for sample in samples(own_directory)] == [None, None, None, 0, 1, 0]


def test_a_guarantee_is_that_of_what_was_sampled(evaluate: Cli, own_directory: Path) -> None:
    """A benchmark says what tokens are chosen by, and one of two samples."""
    result = evaluate("task.tasks=[tiny_generate,tiny_sample]", "pipeline=suffix")
    assert result.status == 0 and metrics(own_directory)["guarantee"] == "distribution"
    assert re.search(r"guarantee +distribution", result.err)
    assert evaluate("task.tasks=tiny_generate", "pipeline=suffix").status == 0
    assert metrics(own_directory)["guarantee"] == "exact"
    chosen = ("sampling.temperature=1", "task.sampling=pipeline")
    assert evaluate("task.tasks=tiny_generate", "pipeline=suffix", *chosen).status == 0
    assert metrics(own_directory)["guarantee"] == "distribution"


def test_filters_are_told_apart(evaluate: Cli, own_directory: Path, own_answers: list[str]) -> None:
    assert evaluate("task.tasks=tiny_filter", "pipeline=vanilla", "task.limit=1").status == 0
    first, second = samples(own_directory)
    assert (first["filter"], first["answers"], first["metrics"]) == ("first", [""], {"exact_match": 0})
    assert (second["filter"], second["answers"], second["metrics"]) == ("whole", own_answers[:1], {"exact_match": 1})
    assert first["responses"] == second["responses"] == [[own_answers[0]]]
    assert metrics(own_directory)["summary"]["scores"]["tiny_filter"] == {
        "exact_match.first": 0,
        "exact_match.whole": 1,
    }


def test_what_had_no_room_is_told(evaluate: Cli, own_directory: Path) -> None:
    result = evaluate("task.tasks=tiny_long", "pipeline=vanilla", "model.context=24", "task.limit=2")
    assert result.status == 0, result.err
    cut = metrics(own_directory)["summary"]["prompts_cut"]
    assert metrics(own_directory)["summary"]["answers_shortened"] == 2
    assert "the longest length of 2 answers shortened to fit model.context=24" in result.err
    assert cut == 0 or f"the beginning of {cut} prompt" in result.err
    assert evaluate("task.tasks=tiny_long", "pipeline=vanilla", "task.limit=2").status == 0
    assert "to fit model.context" not in evaluate("task.tasks=tiny_generate", "pipeline=vanilla").err


def test_an_empty_prompt_begins_with_the_token_that_begins_texts(
    evaluate: Cli, own_directory: Path, model: Model
) -> None:
    assert evaluate("task.tasks=tiny_empty", "pipeline=vanilla", "task.limit=1").status == 0
    engine = Engine.from_pipeline("vanilla", target=model[0])
    answers = engine.generate(
        [[engine.pipeline.models.target.executor.config.bos_token_id]], max_new_tokens=4, stop="."
    )
    assert samples(own_directory)[0]["answers"] == [answer.text for answer in answers]


def test_what_is_done_survives_an_interrupt(
    evaluate: Cli, own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spec_sdk.evaluation.language_model import EngineModel

    own = EngineModel.generate_until
    stopped = "suffix"

    def generate_until(self: Any, requests: Any) -> list[str]:
        if self.engine.pipeline.name == stopped:
            raise KeyboardInterrupt
        return own(self, requests)

    monkeypatch.setattr(EngineModel, "generate_until", generate_until)
    asked = ("task.tasks=tiny_generate", "pipeline=suffix", "compare=true")
    result = evaluate(*asked)
    assert result.status == 130 and not (own_directory / "out").exists()
    assert "no answers of suffix are kept: the same command starts again" in result.err
    stopped = "vanilla"
    result = evaluate(*asked)
    assert result.status == 130 and "vanilla was not scored; the results of suffix are in out" in result.err
    assert metrics(own_directory)["summary"]["questions"] == {"tiny_generate": 3}
    assert "comparison" not in metrics(own_directory) and len(samples(own_directory)) == 3


def test_nothing_but_results_goes_to_stdout(evaluate: Cli) -> None:
    """The harness prints that it estimates the error of a perplexity; one without end is told by its magnitude."""
    result = evaluate("task.tasks=tiny_guess", "pipeline=vanilla")
    assert result.status == 0 and result.out == ""
    assert re.search(r"perplexity +\d\.\d+e\+\d+ ± \d\.\d+e\+\d+ ", result.err)


def test_a_request(model: Model, harness: None) -> None:
    """Stop texts, the longest answer, and a prompt that has no room."""
    from spec_sdk.evaluation.language_model import EngineModel

    engine = Engine.from_pipeline("vanilla", target=model[0], overrides=["model.context=40"])
    asked = EngineModel(engine, seed=3, silent=True)
    said = {"until": ["\n", ""], "max_gen_toks": 7, "temperature": 0.9, "do_sample": True}
    request, _ = asked._request(("The sky is", said), 0)
    assert request.options["max_new_tokens"] == 7 and request.options["stop"] == ["\n"]
    assert request.options["sampling"].temperature == 0.9 and request.options["sampling"].seed == 3
    greedy, _ = asked._request(("The sky is", {"until": ".", "temperature": 0.9, "do_sample": False}), 1)
    assert greedy.options["sampling"].temperature == 0 and greedy.options["sampling"].seed == 4
    long, _ = asked._request((" ".join(QUESTIONS) * 3, {"max_gen_toks": 10}), 2)
    assert len(long.prompt) == 30 and list(long.prompt) == engine.tokenizer.encode(" ".join(QUESTIONS) * 3)[-30:]
    asked_by_harness = Asked("The sky is", {"until": ["e"], "max_gen_toks": 9})
    assert asked.generate_until([asked_by_harness])[0].count("e") == 0
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
        (
            "sampling.top_p=0.9",
            "sampling.top_p: the benchmark says what tokens are chosen by; add task.sampling=pipeline",
        ),
        ("max_new_tokens=4", "max_new_tokens: the benchmark says how long answers may be; leave it out"),
        ("json=true", "json: metrics.json in the output directory has the results; leave it out"),
        ("prompt_limit=4", "prompt_limit: task.limit says how many questions are asked; leave it out"),
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["pipeline=alspek"], "pipeline: unknown pipeline 'alspek'"),
        (["tarket=model"], "--model_args: unknown argument 'tarket', did you mean 'target'?"),
        (["own_scores=perhaps"], "--model_args: own_scores: 'perhaps' must be True or False"),
        (["", "--batch_size", "hot"], "--batch_size: 'hot' must be a number from 1 on, or auto"),
        (["", "--batch_size", "0"], "--batch_size: '0' must be a number from 1 on, or auto"),
    ],
)
def test_bad_arguments_of_its_own_command_line(
    benchmarks: Path,
    harness: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    message: str,
) -> None:
    from spec_sdk.evaluation.__main__ import main

    argv = ["lm-eval", "run", "--model", "spec_sdk", "--tasks", "tiny_generate", "--include_path", str(benchmarks)]
    monkeypatch.setattr("sys.argv", [*argv, "--model_args", *given])
    assert main() == 2
    assert f"error: {message}" in capsys.readouterr().err
