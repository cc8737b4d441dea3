"""Stop strings: found over token borders, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec_sdk import Engine, Request
from spec_sdk.api.stop_strings import StopStrings
from spec_sdk.contracts import Drafter
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.tree import TokenTree
from tests.api.conftest import OVERRIDES, PROMPTS

SAMPLED = {"temperature": 1.5, "max_new_tokens": 40}


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the text before the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_pieces_make_no_difference_and_nothing_of_a_stop_string_is_shown(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    expected, found = reference(text, stops)
    matcher, shown = StopStrings(stops), ""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in zip(borders, borders[1:], strict=False):
        shown += matcher.push(text[begin:end])
        assert expected.startswith(shown)
    assert matcher.found == found
    assert shown + matcher.flush() == expected


@given(
    st.lists(st.tuples(st.text("ab", max_size=4), st.booleans()), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_what_is_complete_where_it_may_not_end_an_answer_is_shown(
    pieces: list[tuple[str, bool]], stops: list[str]
) -> None:
    may_end = [may for piece, may in pieces for _ in piece]
    text = "".join(piece for piece, _ in pieces)
    expected, found = text, False
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts and may_end[end - 1]:
            expected, found = text[: min(starts)], True
            break
    matcher, shown = StopStrings(stops), ""
    for piece, may in pieces:
        shown += matcher.push(piece, may_end=may)
        assert expected.startswith(shown)
    assert (shown + matcher.flush(), matcher.found) == (expected, found)


def test_a_match_that_fails_half_way_is_shown() -> None:
    matcher = StopStrings(["END"])
    assert [matcher.push(piece) for piece in ("a E", "N", "x E", "ND b", "more")] == ["a ", "", "ENx ", "", ""]
    assert matcher.found and matcher.flush() == ""


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_ends_before_its_stop_string(engine: Engine, seed: int) -> None:
    [whole] = engine.generate(PROMPTS[0], seed=seed, **SAMPLED)  # type: ignore[arg-type]
    pieces = engine.tokenizer.stream()
    ends, text = [], ""
    for token in whole.tokens:
        text += pieces.push([token])
        ends.append(len(text))
    # the last characters of one token's text and the first of the next one's
    borders = [end for end in ends[:-1] if 2 <= end <= len(text) - 2 and "\ufffd" not in text[end - 2 : end + 2]]
    assert borders
    for border in borders[:: max(1, len(borders) // 4)]:
        stop = text[border - 2 : border + 2]
        place = text.find(stop)
        options = {**SAMPLED, "seed": seed, "stop": ["never\x00", stop]}
        parts = list(engine.stream(PROMPTS[0], **options))  # type: ignore[arg-type]
        answer = parts[-1].answer
        assert answer is not None
        shown = ""
        for part in parts:
            shown += part.text
            assert text[:place].startswith(shown)
        assert answer.text == shown == text[:place] == answer.metrics["text"]
        kept = next(i for i, end in enumerate(ends) if end >= place + len(stop)) + 1
        assert answer.tokens == whole.tokens[:kept] == answer.metrics["token_ids"]
        assert (answer.finish_reason, answer.metrics["finish_reason"]) == ("stop", "stop")
        assert answer.metrics["new_tokens"] == kept
        assert [token for part in parts for token in part.tokens] == answer.tokens
    assert not engine.pipeline.engine.busy


def test_a_stop_string_ends_one_request_and_not_its_neighbours(engine: Engine) -> None:
    first, second = engine.generate(PROMPTS[:2])
    stop = next(c for c in first.text if c != "\ufffd")
    stopped, other = engine.generate([Request(PROMPTS[0], stop=stop), PROMPTS[1]])
    assert stopped.finish_reason == "stop" and stopped.text == first.text[: first.text.find(stop)]
    assert other.tokens == second.tokens


def test_a_drafter_that_fails_as_a_stop_string_ends_a_request_fails_no_other(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.from_pipeline("prompt_lookup", target=checkpoint, overrides=OVERRIDES)
    first, second = engine.generate(PROMPTS[:2])
    stop = next(c for c in first.text if c != "\ufffd" and c not in second.text)
    finish = type(engine.pipeline.engine.drafter).finish

    def failing(self: Drafter, requests: Any) -> None:
        finish(self, requests)
        if requests[0].new_tokens < 12:
            raise RuntimeError("a bug at the end")

    monkeypatch.setattr(type(engine.pipeline.engine.drafter), "finish", failing)
    stopped, other = engine.generate([Request(PROMPTS[0], stop=stop), PROMPTS[1]])
    assert "a bug at the end" in str(stopped.error) and stopped.text == first.text[: first.text.find(stop)]
    assert (other.tokens, other.finish_reason, other.error) == (second.tokens, "length", None)


class HeldBack:
    """Text that only the end of an answer brings."""

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return "the end"


def test_a_stop_string_in_what_was_held_back_is_the_reason(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(engine.tokenizer), "stream", lambda self, kept: HeldBack())
    [answer] = engine.generate(PROMPTS[0], stop="end")
    assert (answer.text, answer.finish_reason) == ("the ", "stop")
    assert answer.metrics["finish_reason"] == "stop"


def test_what_is_begun_behind_a_stop_string_fails_for_nobody(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where passes are single launches, the next cycle is begun before the text of the one before is looked at."""
    monkeypatch.setattr(TorchExecutor, "one_launch", True)
    [whole] = engine.generate([PROMPTS[0]])
    stop = next(c for c in whole.text if c != "\ufffd")
    asked, last = list[int](), 1000

    def propose(requests: Sequence[Any], budgets: Sequence[Any]) -> list[TokenTree]:
        asked.append(requests[0].step)
        if asked[-1] > last:
            raise ValueError("out of ideas")
        return [TokenTree.root_only(request.pending_token) for request in requests]

    monkeypatch.setattr(engine.pipeline.engine.drafter, "propose", propose)
    [expected] = engine.generate([PROMPTS[0]], stop=stop)
    last = max(asked) - 1
    [answer] = engine.generate([PROMPTS[0]], stop=stop)
    assert (answer.text, answer.finish_reason, answer.error) == (expected.text, "stop", None) and asked[-1] > last
    assert not engine.pipeline.engine.busy
