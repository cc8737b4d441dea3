"""What is measured: answers, hits, and the likelihood of the right answers through the pipeline's own target runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.needles import Haystack, NeedleScore, build_haystack, measure
from spec_sdk.pipeline import Pipeline, build_pipeline
from spec_sdk.registry import Registry
from tests.support.real_pipelines import settings_of, tokens_of

CONTEXT, NEW_TOKENS, SIZE = 700, 60, 32


@pytest.fixture(scope="module")
def directory(saved: tuple[Path, PreTrainedModel]) -> Path:
    return saved[0]


@pytest.fixture(scope="module")
def vanilla(directory: Path) -> Pipeline:
    return pipeline(directory, "pipeline=vanilla")


@pytest.fixture(scope="module")
def haystack(vanilla: Pipeline) -> Haystack:
    return build_haystack(vanilla.tokenizer, CONTEXT, hashes=2, facts=2)


@pytest.fixture(scope="module")
def plain(vanilla: Pipeline, haystack: Haystack) -> NeedleScore:
    return measure(vanilla, haystack, max_new_tokens=NEW_TOKENS)


def pipeline(directory: Path, *overrides: str) -> Pipeline:
    return build_pipeline(settings_of(f"model.target={directory}", *overrides), Registry.discover())


def alspec(directory: Path, *overrides: str) -> Pipeline:
    return pipeline(directory, "pipeline=alspec", f"predictor.size={SIZE}", *overrides)


def nlls(score: NeedleScore) -> torch.Tensor:
    return torch.tensor([answer.nll for answer in score.answers], dtype=torch.float64)


def texts(score: NeedleScore) -> list[str]:
    return [answer.text for answer in score.answers]


def test_the_likelihood_is_that_of_transformers(
    saved: tuple[Path, PreTrainedModel], haystack: Haystack, plain: NeedleScore
) -> None:
    for answer, question in zip(plain.answers, haystack.questions, strict=True):
        ids = torch.tensor([[*question.prompt, *question.lead, *question.answer]])
        with torch.no_grad():
            logits: Any = saved[1](ids).logits[0]
        count = len(question.answer)
        logprobs = logits[-count - 1 : -1].double().log_softmax(-1)
        expected = -logprobs.gather(1, ids[0, -count:, None]).sum().item()
        assert answer.nll == pytest.approx(expected, rel=1e-4)
        assert answer.nll_per_token == pytest.approx(expected / count, rel=1e-4)
        assert answer.scoring.rate is None and answer.answering.rate is None


def test_answers_are_those_of_generate(vanilla: Pipeline, haystack: Haystack, plain: NeedleScore) -> None:
    for answer, question in zip(plain.answers, haystack.questions, strict=True):
        tokens = tokens_of(vanilla, question.prompt, NEW_TOKENS)
        assert answer.text == vanilla.tokenizer.decode(tokens)
        assert not answer.found


def test_nothing_accepted_is_plain_decoding(directory: Path, haystack: Haystack, plain: NeedleScore) -> None:
    score = measure(alspec(directory, "attention_verifier.threshold=0"), haystack, max_new_tokens=NEW_TOKENS)
    assert texts(score) == texts(plain)
    assert (nlls(score) - nlls(plain)).abs().max() < 1e-3
    assert score.scoring.rate == score.answering.rate == 0
    # three layers, one pass per token of the right answers
    passes = sum(len(question.lead) + len(question.answer) for question in haystack.questions)
    assert score.scoring.predicted == 3 * passes


@pytest.mark.parametrize("predictor", ["attention_sink", "h2o", "quest"])
def test_everything_accepted_is_not(directory: Path, haystack: Haystack, plain: NeedleScore, predictor: str) -> None:
    speculating = alspec(directory, "attention_verifier.threshold=inf", f"predictor={predictor}")
    score = measure(speculating, haystack, max_new_tokens=NEW_TOKENS)
    assert score.scoring.rate == score.answering.rate == 1
    assert (nlls(score) - nlls(plain)).abs().min() > 1e-3
    assert texts(score) != texts(plain)


def test_a_token_tree_does_not_change_what_is_measured(directory: Path, haystack: Haystack, plain: NeedleScore) -> None:
    trees = pipeline(directory, "pipeline=easyspec_paper", "model.draft_layers=[0,2]")
    score = measure(trees, haystack, max_new_tokens=NEW_TOKENS)
    assert texts(score) == texts(plain)
    assert torch.equal(nlls(score), nlls(plain))


def test_the_order_of_the_questions_does_not_matter(directory: Path) -> None:
    learning = alspec(directory, "predictor=h2o", "attention_verifier.threshold=0.3")
    haystack = build_haystack(learning.tokenizer, CONTEXT, hashes=0, facts=2)
    backwards = dataclasses.replace(haystack, questions=haystack.questions[::-1])
    forth, back = (measure(learning, asked, max_new_tokens=NEW_TOKENS) for asked in (haystack, backwards))
    assert texts(forth) == texts(back)[::-1]
    assert (nlls(forth) - nlls(back).flip(0)).abs().max() < 1e-3


def test_what_is_found_is_counted(monkeypatch: pytest.MonkeyPatch, vanilla: Pipeline, haystack: Haystack) -> None:
    right = {question.prompt: question.answer for question in haystack.questions}
    wrong = haystack.questions[1].prompt

    def oracle(self: TokenEngine, request: TokenRequest) -> Iterator[list[int]]:
        yield list(right[tuple(request.prompt)])[: 3 if request.prompt == wrong else None]

    monkeypatch.setattr(TokenEngine, "stream", oracle)
    told: list[bool] = []
    score = measure(vanilla, haystack, max_new_tokens=NEW_TOKENS, tell=lambda answer: told.append(answer.found))
    assert told == [True, False, True, True]
    assert (score.found, score.of("hash").found, score.of("fact").found) == (3, 1, 2)
    doubled = score + score
    assert (doubled.found, doubled.asked) == (6, 8)
    assert doubled.nll == pytest.approx(score.nll) and doubled.nll_per_token == pytest.approx(score.nll_per_token)
    tokens = [len(question.answer) for question in haystack.questions]
    assert score.nll == pytest.approx(float(nlls(score).mean()))
    assert score.nll_per_token == pytest.approx(float(nlls(score).sum()) / sum(tokens))
    assert NeedleScore(()).nll is None


@pytest.mark.parametrize(
    ("overrides", "new_tokens", "message"),
    [
        (["sampling.temperature=0.5"], NEW_TOKENS, "sampling.temperature: 0.5 must be 0"),
        ([], 4, r"task.max_new_tokens: 4 is too short for a right answer; use \d+ or more"),
        ([], 3700, "use task.context=396 or less"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    directory: Path, haystack: Haystack, overrides: list[str], new_tokens: int, message: str
) -> None:
    refusing = pipeline(directory, "pipeline=vanilla", *overrides)
    with pytest.raises(UserError, match=message):
        measure(refusing, haystack, max_new_tokens=new_tokens)
