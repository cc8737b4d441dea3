"""Likelihoods: those of transformers where the pipeline is lossless, and token by token through a relaxed runner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from spec_sdk import Engine
from spec_sdk.evaluation import scoring
from spec_sdk.evaluation.scoring import Scorer
from spec_sdk.needles.measuring import score_answer
from spec_sdk.pipeline import Pipeline

CONTEXT = list(range(20, 60))
CONTINUATION = [70, 71, 3, 90, 91, 92, 70]


def pipeline_of(place: Path, name: str, *overrides: str) -> Pipeline:
    return Engine.from_pipeline(name, target=place, overrides=overrides).pipeline


def relaxed(place: Path, threshold: str) -> Pipeline:
    return pipeline_of(place, "alspec", "predictor.size=4", f"attention_verifier.threshold={threshold}")


def by_transformers(model: PreTrainedModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    with torch.no_grad():
        logits_NV = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1].double()
    right_N = torch.tensor(continuation)
    logprob_N = logits_NV.log_softmax(-1).gather(-1, right_N[:, None])[:, 0]
    return float(logprob_N.sum()), bool((logits_NV.argmax(-1) == right_N).all())


@pytest.mark.parametrize("at_once", [1, 3, 256])
def test_those_of_a_lossless_pipeline(
    model: tuple[Path, PreTrainedModel], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "ROWS_AT_ONCE", at_once)
    scorer = Scorer(pipeline_of(model[0], "suffix"))
    # one after the other in one slot: none leaves anything to the next
    cases = [(CONTEXT, CONTINUATION), (CONTEXT, CONTINUATION[::-1]), (CONTEXT[:1], CONTINUATION), (CONTEXT, [70])]
    for context, continuation in [*cases, *cases]:
        score = scorer.score(context, continuation)
        expected, greedy = by_transformers(model[1], context, continuation)
        assert score.log_probability == pytest.approx(expected, abs=1e-3)
        assert (score.greedy, score.predicted) == (greedy, 0)


def test_what_the_model_says_is_greedy(model: tuple[Path, PreTrainedModel]) -> None:
    pipeline = pipeline_of(model[0], "vanilla", "ignore_eos=true")
    said = [token for tokens in pipeline.stream(CONTEXT, max_new_tokens=6, ignore_eos=True) for token in tokens]
    scorer = Scorer(pipeline)
    assert scorer.score(CONTEXT, said).greedy
    assert not scorer.score(CONTEXT, [*said[:5], (said[5] + 1) % 400]).greedy


def test_those_of_a_pipeline_that_speculates_on_attention(model: tuple[Path, PreTrainedModel]) -> None:
    """Nothing accepted: the target's. All accepted: what the needle test scores, in passes of one token."""
    exact = by_transformers(model[1], CONTEXT, CONTINUATION)[0]
    never = Scorer(relaxed(model[0], "0")).score(CONTEXT, CONTINUATION)
    assert never.log_probability == pytest.approx(exact, abs=1e-3)
    assert never.predicted == 3 * len(CONTINUATION) and never.hits == 0
    always = relaxed(model[0], "inf")
    scorer = Scorer(always)
    assert scorer.relaxed
    score = scorer.score(CONTEXT, CONTINUATION)
    assert score.hits == score.predicted == 3 * len(CONTINUATION)
    assert abs(score.log_probability - exact) > 0.01
    nll, hits = score_answer(always.new_engine().target, CONTEXT, [], CONTINUATION)
    assert score.log_probability == pytest.approx(-nll, abs=1e-6) and hits.rate == 1
    # again, in a slot where a continuation was fed through the runner
    assert scorer.score(CONTEXT, CONTINUATION) == score
    own = Scorer(always, own=True)
    assert not own.relaxed
    assert own.score(CONTEXT, CONTINUATION).log_probability == pytest.approx(exact, abs=1e-3)
