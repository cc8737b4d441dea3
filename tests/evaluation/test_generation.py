"""How much of the context a prompt and its answer get, and what a task may say of answers."""

from __future__ import annotations

import pytest

from spec_sdk.errors import UserError

PROMPT = list(range(100, 142))


@pytest.mark.parametrize(
    ("prompt", "limit", "context", "kept", "room"),
    [
        (42, 22, 64, 42, 22),  # both fit
        (42, 32, 64, 32, 32),  # as the harness's other models: the prompt loses its beginning
        (42, 10, 32, 22, 10),
        (30, 40, 64, 30, 34),  # a longer limit yields to the prompt
        (42, 256, 64, 32, 32),
        (10, 256, 24, 10, 14),
        (1, 100_000, 24, 1, 23),
        (42, 256, 24, 12, 12),
        (42, 16_384, 2_000, 42, 1_958),
    ],
)
def test_a_prompt_comes_before_the_length_of_its_answer(
    harness: None, prompt: int, limit: int, context: int, kept: int, room: int
) -> None:
    from spec_sdk.evaluation.generation import Fitted

    fitted = Fitted.of(PROMPT[:prompt], limit, context)
    assert (list(fitted.prompt), fitted.limit) == (PROMPT[:prompt][-kept:], room)
    assert (fitted.prompt_cut, fitted.answer_shortened) == (kept < prompt, room < limit)
    assert len(fitted.prompt) + fitted.limit <= context


def test_a_long_prompt_leaves_an_answer_of_the_usual_length(harness: None) -> None:
    from spec_sdk.evaluation.generation import LONGEST_ANSWER, Fitted

    fitted = Fitted.of(list(range(4000)), 4096, 4096)
    assert fitted.limit == LONGEST_ANSWER and len(fitted.prompt) == 4096 - LONGEST_ANSWER


def test_options(harness: None) -> None:
    from spec_sdk.evaluation.generation import LONGEST_ANSWER, GenerationOptions

    said = GenerationOptions.of({"until": ["\n", ""], "max_new_tokens": 7, "temperature": 0.9, "do_sample": True})
    assert said == GenerationOptions(7, ["\n"], {"temperature": 0.9})
    assert GenerationOptions.of({"until": "."}) == GenerationOptions(LONGEST_ANSWER, ["."], {})
    assert GenerationOptions.of({"temperature": 0.9, "do_sample": False}).sampled_by == {"temperature": 0}
    assert GenerationOptions.of({"do_sample": True}).sampled_by == {"temperature": 1.0}
    for wrong in ({"temperature": "hot"}, {"max_gen_toks": "many"}):
        with pytest.raises(UserError, match=r"generation_kwargs: .*(hot|many)"):
            GenerationOptions.of(wrong)
    with pytest.raises(UserError, match="generation option 'num_beams', which is not offered here"):
        GenerationOptions.of({"num_beams": 5})
