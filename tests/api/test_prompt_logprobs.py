"""``prompt_logprobs``: the likelihood of a prompt by the target's own plain passes, under any pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from spec_sdk import Engine, UserError
from spec_sdk.engine.token_logprobs import TokenLogprob
from tests.api.conftest import PROMPTS

LONG = torch.randint(3, 480, (600,), generator=torch.Generator().manual_seed(5)).tolist()
"""More tokens than are scored in one piece."""


def check(told: Sequence[TokenLogprob], prompt: Sequence[int], top: int, checkpoint: Path) -> None:
    """Against transformers, in double precision."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    with torch.no_grad():
        logprob_NV = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert [one.token for one in told] == list(prompt[1:])
    for one, own_V in zip(told, logprob_NV, strict=False):
        assert one.logprob == pytest.approx(float(own_V[one.token]), abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx(own_V.topk(top).values.tolist(), abs=1e-4)


def test_they_are_those_of_transformers(engine: Engine, checkpoint: Path) -> None:
    [plain] = engine.generate([LONG])
    # the cache has the prompt by now; its log-probabilities are computed all the same
    for _ in range(2):
        [answer] = engine.generate([LONG], prompt_logprobs=3)
        check(answer.prompt_logprobs, LONG, 3, checkpoint)
        assert answer.tokens == plain.tokens and answer.logprobs == plain.prompt_logprobs == []


def test_they_say_nothing_of_how_tokens_are_drawn(engine: Engine) -> None:
    [greedy] = engine.generate([LONG[:40]], prompt_logprobs=1)
    [drawn] = engine.generate([LONG[:40]], prompt_logprobs=1, temperature=1.4, seed=3, top_k=5, logit_bias={7: 1.0})
    assert [one.logprob for one in drawn.prompt_logprobs] == pytest.approx(
        [one.logprob for one in greedy.prompt_logprobs], abs=1e-4
    )


def test_beside_others_and_for_each_answer(engine: Engine, checkpoint: Path) -> None:
    prompts = [engine.tokenizer.encode(prompt) for prompt in PROMPTS[:2]]
    answers = engine.generate([*prompts, LONG], prompt_logprobs=0, n=2, temperature=1.0, seed=1)
    for number, answer in enumerate(answers):
        check(answer.prompt_logprobs, [*prompts, LONG][number // 2], 0, checkpoint)


def test_the_first_part_of_a_stream_has_them(engine: Engine) -> None:
    first, *later = engine.stream(LONG[:9], prompt_logprobs=0, logprobs=0)
    assert len(first.prompt_logprobs) == 8 and not any(part.prompt_logprobs for part in later)
    assert later[-1].answer is not None and later[-1].answer.prompt_logprobs == first.prompt_logprobs
    assert engine.generate([[5]], prompt_logprobs=0)[0].prompt_logprobs == []


@pytest.mark.parametrize("value", [21, -1, True, "1"])
def test_what_is_refused(value: Any, engine: Engine) -> None:
    with pytest.raises(UserError, match="^prompt_logprobs: .* must be a whole number between 0 and 20, or None"):
        engine.generate(PROMPTS[0], prompt_logprobs=value)
