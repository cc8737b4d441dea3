"""``stream``, ``add`` and ``step``: what comes when, and what ends early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Engine, Part, UserError
from spec_sdk.contracts import Drafter
from tests.api.conftest import OVERRIDES, PROMPTS


def test_parts_make_up_the_answer(engine: Engine) -> None:
    [expected] = engine.generate(PROMPTS[0])
    parts = list(engine.stream(PROMPTS[0]))
    assert [token for part in parts for token in part.tokens] == expected.tokens
    assert "".join(part.text for part in parts) == expected.text
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    answer = parts[-1].answer
    assert answer is not None and (answer.text, answer.tokens) == (expected.text, expected.tokens)
    assert len(parts) == expected.metrics["steps"] < len(expected.tokens)


def test_samples_are_streamed_side_by_side(engine: Engine) -> None:
    parts = list(engine.stream(PROMPTS[0], n=2, temperature=1.0, seed=1, max_new_tokens=30))
    expected = engine.generate(PROMPTS[0], n=2, temperature=1.0, seed=1, max_new_tokens=30)
    for sample in (0, 1):
        assert [t for part in parts if part.sample == sample for t in part.tokens] == expected[sample].tokens
    samples = [part.sample for part in parts]
    assert samples != sorted(samples)


def test_closing_a_stream_cancels_its_request(engine: Engine) -> None:
    stream = engine.stream(PROMPTS[0])
    next(stream)
    assert engine.pipeline.engine.busy
    stream.close()
    assert not engine.pipeline.engine.busy


def test_a_stream_that_is_closed_within_a_step_disturbs_no_other(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector closes a forgotten stream at any place, in the thread that steps too."""
    engine = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=OVERRIDES)
    expected = [answer.tokens for answer in engine.generate(PROMPTS[:2])]
    forgotten = engine.stream(PROMPTS[2])
    next(forgotten)
    kind = type(engine.pipeline.engine.drafter)
    propose = kind.propose

    def collecting(self: Drafter, requests: Any, budgets: Any) -> Any:
        forgotten.close()
        return propose(self, requests, budgets)

    monkeypatch.setattr(kind, "propose", collecting)
    assert [answer.tokens for answer in engine.generate(PROMPTS[:2])] == expected
    assert not engine.pipeline.engine.busy


def test_a_stream_that_nobody_reads_is_not_begun(engine: Engine) -> None:
    engine.stream(PROMPTS[0])
    assert not engine.pipeline.engine.busy


def test_what_is_refused_is_refused_at_once(engine: Engine) -> None:
    with pytest.raises(UserError, match="lies outside the vocabulary"):
        engine.stream([10**6])
    with pytest.raises(UserError, match="several; generate answers them"):
        engine.stream(["a", "b"])  # type: ignore[arg-type]


def test_other_calls_in_the_middle_of_a_stream_lose_nothing(engine: Engine) -> None:
    expected = [answer.tokens for answer in engine.generate(PROMPTS[:3])]
    stream = engine.stream(PROMPTS[0])
    parts = [next(stream)]
    other = engine.stream(PROMPTS[1])
    beside = [next(other)]
    assert engine.generate(PROMPTS[2])[0].tokens == expected[2]
    parts += stream
    beside += other
    assert [token for part in parts for token in part.tokens] == expected[0]
    assert [token for part in beside for token in part.tokens] == expected[1]


def test_requests_are_added_stepped_and_cancelled(engine: Engine) -> None:
    expected = [answer.tokens for answer in engine.generate(PROMPTS[:2])]
    first = engine.add(PROMPTS[0])
    parts = engine.step()
    second, third = engine.add(PROMPTS[1]), engine.add(PROMPTS[2])
    engine.cancel(third)
    while engine.busy:
        parts += engine.step()
    assert len({first, second, third}) == 3

    def of(request: int) -> list[Part]:
        return [part for part in parts if part.request == request]

    assert [[t for part in of(request) for t in part.tokens] for request in (first, second)] == expected
    [cancelled] = of(third)
    assert cancelled.finish_reason == "interrupted" and cancelled.tokens == []
    assert all(of(request)[-1].finish_reason == "length" for request in (first, second))
    engine.cancel(first)  # ended long ago


def test_an_interrupt_ends_what_was_under_way(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    request = engine.add(PROMPTS[1])
    with monkeypatch.context() as patch:
        patch.setattr(engine.pipeline.engine.scheduler, "_propose", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(PROMPTS[0])
    assert [(part.request, part.finish_reason) for part in engine.step()] == [(request, "interrupted")]
    assert not engine.busy and not engine.pipeline.engine.busy
    assert engine.generate(PROMPTS[0])[0].finish_reason == "length"
