"""Log-probabilities, logit bias and counting penalties under speculation are those of plain decoding."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spec_sdk import Engine, UserError
from tests.api.conftest import PROMPTS

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bias": {"logit_bias": {404: -1.0, 300: -3.0}},
    "presence": {"presence_penalty": 0.3, "repetition_penalty": 1.0},
    "frequency": {"frequency_penalty": 0.2, "repetition_penalty": 1.0},
    "all": {"logit_bias": {404: -0.5}, "presence_penalty": -0.2, "frequency_penalty": 0.4},
}


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Engine:
    return engine.with_pipeline("vanilla")


@pytest.mark.parametrize("case", OPTIONS)
def test_greedy_tokens_and_logprobs_are_those_of_plain_decoding(case: str, engine: Engine, plain: Engine) -> None:
    options: Any = {"max_new_tokens": 24, **OPTIONS[case]}
    [expected], [given] = (each.generate(PROMPTS[0], logprobs=4, **options) for each in (plain, engine))
    assert given.tokens == expected.tokens
    # several tokens in a step: they come from several rows of a tree
    assert given.metrics["mean_accepted_tokens"] > 1.2
    assert len(given.logprobs) == len(given.tokens)
    for one, other, token in zip(given.logprobs, expected.logprobs, given.tokens, strict=True):
        assert one.token == token and len(one.top) == 4
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)
    [unasked] = engine.generate(PROMPTS[0], **options)
    assert unasked.tokens == given.tokens and unasked.logprobs == []
    if case != "greedy":
        assert engine.generate(PROMPTS[0], max_new_tokens=24)[0].tokens != given.tokens


def test_they_are_of_the_target_alone(engine: Engine) -> None:
    """Whatever a token is drawn by: of the same prefix the same, and all of them sum to 1."""
    [greedy] = engine.generate(PROMPTS[1], logprobs=20)
    [drawn] = engine.generate(PROMPTS[1], logprobs=20, temperature=1.4, seed=3, top_k=40, logit_bias={7: 1.0})
    assert [value for _, value in greedy.logprobs[0].top] == pytest.approx(
        [value for _, value in drawn.logprobs[0].top], abs=1e-4
    )
    values = dict(greedy.logprobs[0].top)
    assert list(values.values()) == sorted(values.values(), reverse=True)
    assert 0 < sum(map(math.exp, values.values())) < 1


def test_sampled_tokens_have_those_of_plain_decoding(engine: Engine, plain: Engine) -> None:
    """Plain decoding is made to follow what was drawn, a token at a time."""
    prompt = engine.tokenizer.encode(PROMPTS[3])
    for seed in range(3):
        [drawn] = engine.generate([prompt], logprobs=0, temperature=1.5, seed=seed, max_new_tokens=16)
        assert drawn.metrics["accepted"] > 0
        for place, one in enumerate(drawn.logprobs):
            asked = [*prompt, *drawn.tokens[:place]]
            [own] = plain.generate([asked], logprobs=0, logit_bias={one.token: 100.0}, max_new_tokens=1)
            assert own.tokens == [one.token] and one.logprob == pytest.approx(own.logprobs[0].logprob, abs=1e-4)


def test_parts_of_a_stream_have_them(engine: Engine) -> None:
    parts = list(engine.stream(PROMPTS[2], logprobs=1))
    assert [one.token for part in parts for one in part.logprobs] == [t for part in parts for t in part.tokens]
    assert parts[-1].answer is not None
    assert [one for part in parts for one in part.logprobs] == parts[-1].answer.logprobs


def test_a_stop_string_cuts_them_off_with_the_tokens(engine: Engine) -> None:
    [whole] = engine.generate(PROMPTS[2])
    [cut] = engine.generate(PROMPTS[2], logprobs=0, stop=whole.text[len(whole.text) // 2 :][:2])
    assert len(cut.logprobs) == len(cut.tokens) < len(whole.tokens)
    assert all(one.top == () for one in cut.logprobs)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {480: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 101}),
        ("logit_bias", [1]),
        ("presence_penalty", math.inf),
        ("frequency_penalty", "1"),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
    ],
)
def test_what_is_refused(option: str, value: Any, engine: Engine) -> None:
    given: Any = {option: value}
    with pytest.raises(UserError, match=f"^{option}"):
        engine.generate(PROMPTS[0], **given)
    with pytest.raises(UserError, match=f"^{option}"):
        engine.check(PROMPTS[0], **given)
