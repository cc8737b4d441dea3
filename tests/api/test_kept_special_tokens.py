"""Special tokens that an answer's text has, because it was asked for them."""

from __future__ import annotations

from typing import Any

import pytest

from spec_sdk import Engine, UserError

FORCED: Any = {"constraint": {"name": "tokens", "begin": [40, 1, 41, 2, 42]}, "max_new_tokens": 5}


def test_those_that_are_asked_for_stand_in_the_text(engine: Engine) -> None:
    piece = engine.tokenizer.piece
    [plain] = engine.generate("Hi", **FORCED)
    [kept] = engine.generate("Hi", kept_special_tokens=[1], **FORCED)
    assert plain.tokens == kept.tokens
    assert plain.text == piece(40) + piece(41) + piece(42)
    assert kept.text == piece(40) + "<s>" + piece(41) + piece(42)
    parts = engine.stream("Hi", kept_special_tokens=[1, 2], **FORCED)
    assert "".join(part.text for part in parts) == piece(40) + "<s>" + piece(41) + "</s>" + piece(42)


def test_they_may_complete_a_stop_string(engine: Engine) -> None:
    [answer] = engine.generate("Hi", kept_special_tokens=[1], stop="<s>", **FORCED)
    assert (answer.text, answer.finish_reason) == (engine.tokenizer.piece(40), "stop")


@pytest.mark.parametrize("given", [3, ["<s>"], [1.5], [True]])
def test_others_than_ids_are_refused(given: Any, engine: Engine) -> None:
    with pytest.raises(UserError, match="kept_special_tokens: "):
        engine.generate("Hi", kept_special_tokens=given)
