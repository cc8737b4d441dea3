"""``min_tokens``: nothing ends an answer before, and speculation gives what plain decoding does."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk import Engine, UserError
from tests.api.conftest import PROMPTS


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Engine:
    return engine.with_pipeline("vanilla")


@pytest.fixture(scope="module")
def end(engine: Engine) -> int:
    """A token that greedy answers to the first prompt begin with."""
    return engine.generate(PROMPTS[0])[0].tokens[0]


def test_greedy_tokens_are_those_of_plain_decoding_without_the_end(engine: Engine, plain: Engine, end: int) -> None:
    asked: Any = {"max_new_tokens": 24, "stop_token_ids": [end]}
    assert len(engine.generate(PROMPTS[0], **asked)[0].tokens) == 1
    [given], [expected] = (each.generate(PROMPTS[0], min_tokens=9, **asked) for each in (engine, plain))
    assert given.tokens == expected.tokens and given.finish_reason == expected.finish_reason
    assert given.metrics["mean_accepted_tokens"] > 1.2
    [barred] = plain.generate(PROMPTS[0], max_new_tokens=9, logit_bias={end: -100.0})
    assert given.tokens[:9] == barred.tokens
    # what comes then is no more changed
    begun = engine.tokenizer.chat([{"role": "user", "content": PROMPTS[0]}]) + given.tokens[:9]
    [on] = plain.generate([begun], stop_token_ids=[end], max_new_tokens=15)
    assert given.tokens[9:] == on.tokens


@pytest.mark.parametrize("min_tokens", [0, 1, 6])
def test_drawn_answers_end_behind_them_alone(min_tokens: int, engine: Engine) -> None:
    lengths, ends = set(), range(3, 480, 8)
    for seed in range(12):
        asked: Any = {"seed": seed, "temperature": 1.5, "stop_token_ids": ends, "max_new_tokens": 24}
        [answer] = engine.generate(PROMPTS[1], min_tokens=min_tokens, **asked)
        assert not set(answer.tokens[:min_tokens]) & {*ends}
        assert (answer.finish_reason == "stop") == (answer.tokens[-1] in ends)
        lengths.add(len(answer.tokens))
    assert min_tokens < min(lengths) < 24


def test_the_model_s_own_end_is_held_back(engine: Engine) -> None:
    asked: Any = {"ignore_eos": False, "logit_bias": {2: 100.0}}
    assert [len(engine.generate(PROMPTS[0], min_tokens=n, **asked)[0].tokens) for n in (0, 1, 5)] == [1, 2, 6]


def test_a_constraint_that_leaves_nothing_else_ends_an_answer(engine: Engine) -> None:
    asked: Any = {"constraint": {"name": "regex", "pattern": "abc"}, "ignore_eos": False, "max_new_tokens": 20}
    [answer] = engine.generate(PROMPTS[0], min_tokens=15, **asked)
    assert (answer.text, answer.finish_reason) == ("abc", "stop")
    # one that leaves a choice goes on
    asked["constraint"] = {"name": "regex", "pattern": "a+"}
    [answer] = engine.generate(PROMPTS[0], min_tokens=15, **asked)
    assert len(answer.tokens) > 15


def test_a_stop_string_within_them_is_text(engine: Engine) -> None:
    [whole] = engine.generate(PROMPTS[2])
    stop = engine.tokenizer.decode(whole.tokens[2:4])
    pieces, texts = engine.tokenizer.stream(), list[str]()
    for token in whole.tokens:
        texts.append(pieces.push([token]))
    first = next(n for n in range(1, 13) if stop in "".join(texts[:n]))
    [cut] = engine.generate(PROMPTS[2], stop=stop, min_tokens=first - 1)
    assert len(cut.tokens) == first and cut.finish_reason == "stop"
    [answer] = engine.generate(PROMPTS[2], stop=stop, min_tokens=first)
    assert len(answer.tokens) > first and answer.text.startswith("".join(texts[:first]))


@pytest.mark.parametrize("value", [-1, True, "2", 1.5, 13])
def test_what_is_refused(value: Any, engine: Engine) -> None:
    with pytest.raises(UserError, match="^min_tokens: .*" + ("more than max_new_tokens=12" if value == 13 else "0 or")):
        engine.generate(PROMPTS[0], min_tokens=value)
