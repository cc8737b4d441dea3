"""Opening a slot: what its prompts have in common is fed once, and nothing else is left of the last request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.tree import TokenTree
from spec_sdk_predictors.h2o import H2O, H2OConfig
from spec_sdk_predictors.quest import Quest, QuestConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.support.tiny_decoder import tiny_executor

TEXT = [5, 9, 17, 30, 44, 6, 71, 8, 12, 13]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of every chain pass."""
    seen: list[list[int]] = []
    forward = TorchExecutor.forward

    def spy(self: TorchExecutor, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        if inputs.kind == "chain":
            seen.append(inputs.token_BN[0].tolist())
        return forward(self, inputs, cache, plan)

    monkeypatch.setattr(TorchExecutor, "forward", spy)
    return seen


def prefilled(session: Session, prompt: Sequence[int], slot: int = 0) -> int:
    """Open the slot for ``prompt`` and feed what it does not hold; how many tokens it did hold."""
    kept = session.open(slot, prompt)
    session.prefill(slot, prompt[kept:])
    return kept


def answer(session: Session, prompt: Sequence[int], more: Sequence[int]) -> torch.Tensor:
    """Logits after the prompt, prefilled, and after each of ``more``, scored and committed one by one."""
    prefilled(session, prompt)
    rows = []
    for token in more:
        rows.append(session.score([0], [TokenTree.root_only(token)])[0].logits_NV[0])
        session.commit([0], [[0]])
    return torch.stack(rows)


def test_only_what_differs_is_fed_and_the_logits_stay(fed: list[list[int]]) -> None:
    executor = tiny_executor()
    shared = Session(executor)
    prompts = [[*TEXT, 20, 21, 22], [*TEXT, 20, 33], [*TEXT, 20, 33], TEXT[:4], [7, 8], [*TEXT, 20]]
    expected = [answer(Session(executor), prompt, [40, 41]) for prompt in prompts]
    fed.clear()
    found = [answer(shared, prompt, [40, 41]) for prompt in prompts]
    assert fed == [[*TEXT, 20, 21, 22], [33], [7, 8], [*TEXT, 20]]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4


def test_the_answer_of_the_last_request_is_shared_too(fed: list[list[int]]) -> None:
    """As in a conversation: the next prompt begins with what was asked and answered."""
    session = Session(tiny_executor())
    answer(session, TEXT, [40, 41])
    assert session.shared(0, [*TEXT, 40, 50]) == len(TEXT) + 1
    answer(session, [*TEXT, 40, 41, 50], [60])
    assert fed == [TEXT, [50]]


def test_every_slot_has_a_text_of_its_own(fed: list[list[int]]) -> None:
    session = Session(tiny_executor())
    assert [prefilled(session, TEXT, 0), prefilled(session, [*TEXT, 3], 2)] == [0, 0]
    assert [session.shared(slot, TEXT[:7]) for slot in range(4)] == [7, 0, 7, 0]
    assert prefilled(session, [*TEXT[:5], 9], 2) == 5
    assert fed == [TEXT, [*TEXT, 3], [9]]


def test_whoever_wants_hidden_states_gets_those_of_all_tokens(fed: list[list[int]]) -> None:
    session = Session(tiny_executor())
    session.prefill(0, TEXT)
    assert session.open(0, [*TEXT, 3], keep=False) == 0
    hidden = session.prefill(0, [*TEXT, 3], [2])
    assert hidden[2].shape[0] == len(TEXT) + 1 == session.length()
    assert fed == [TEXT, [*TEXT, 3]]


def test_what_was_rolled_back_is_fed_again(fed: list[list[int]]) -> None:
    session = Session(tiny_executor())
    session.prefill(0, TEXT)
    session.truncate(0, 4)
    session.feed([0], [[60, 61]])
    assert prefilled(session, TEXT) == 4
    assert fed == [TEXT, [60, 61], TEXT[4:]]
    assert session.length() == len(TEXT)


def test_a_pass_that_was_not_committed_is_not_shared() -> None:
    session = Session(tiny_executor())
    session.prefill(0, TEXT)
    session.score([0], [TokenTree.chain(50, [51, 52])])
    assert session.shared(0, [*TEXT, 50, 51]) == len(TEXT)


@pytest.mark.parametrize(
    "predictor", [lambda: H2O(H2OConfig(3)), lambda: Quest(QuestConfig(4, 2))], ids=["h2o", "quest"]
)
def test_nothing_of_a_predictor_is_left(predictor: Any) -> None:
    """What a request's predictor learned is gone with it, though its keys stay, and another slot's is not touched."""

    def runner() -> AttentionSpeculativeRunner:
        return AttentionSpeculativeRunner(predictor, L2Threshold(L2ThresholdConfig(0.3)))

    def reports(session: Session, slot: int, more: Sequence[int]) -> list[Any]:
        made = []
        for token in more:
            (scores,) = session.score([slot], [TokenTree.chain(token, [token + 1])])
            assert scores.attention is not None
            made.append((scores.attention.hit, scores.attention.error))
            session.commit([slot], [[0]])
        return made

    fresh, used = Session(tiny_executor(), runner()), Session(tiny_executor(), runner())
    text = TEXT * 3
    for session in (fresh, used):
        for slot in (0, 1):
            prefilled(session, text, slot)
    expected, begun = reports(fresh, 0, [40, 42, 44]), reports(used, 1, [60])
    reports(used, 0, [70, 72, 74, 76])
    assert prefilled(used, text, 0) == len(text)
    assert reports(used, 0, [40, 42, 44]) == expected
    assert begun + reports(used, 1, [62, 64]) == reports(fresh, 1, [60, 62, 64])


def test_what_was_only_guessed_is_not_shared(fed: list[list[int]]) -> None:
    """Behind a prompt lie K and V of states whose attention was predicted: another request must not begin with them."""
    runner = AttentionSpeculativeRunner(lambda: H2O(H2OConfig(3)), L2Threshold(L2ThresholdConfig(0.9)))
    used, text = Session(tiny_executor(), runner), TEXT * 3
    answer(used, text, [40, 41])
    assert used.shared(0, [*text, 40, 41, 50]) == len(text)
    fed.clear()
    prefilled(used, [*text, 40, 41, 50])
    assert fed == [[40, 41, 50]]
    assert used.shared(0, [*text, 40, 41, 50, 60]) == len(text) + 3, "those are plain"
    used.truncate(0, 4)
    used.score([0], [TokenTree.root_only(70)])
    used.commit([0], [[0]])
    used.feed([0], [[71, 72]])
    assert used.shared(0, [*text[:4], 70, 71, 72]) == 4
