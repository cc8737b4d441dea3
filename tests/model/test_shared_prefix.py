"""A session that several requests with the same beginning share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.model.session import Session
from spec_sdk.model.shared_prefix import SharedPrefixSession
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.support.tiny_decoder import tiny_decoder

TEXT = [5, 9, 17, 30, 44, 6, 71, 8, 12, 13]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of every chain pass."""
    seen: list[list[int]] = []
    chain_pass = Session._chain_pass

    def spy(self: Session, tokens: Sequence[int], *rest: Any) -> Any:
        seen.append(list(tokens))
        return chain_pass(self, tokens, *rest)

    monkeypatch.setattr(Session, "_chain_pass", spy)
    return seen


def answer(session: Session, prompt: list[int], more: list[int]) -> torch.Tensor:
    """Logits after the prompt, prefilled, and after each of ``more``, scored and committed one by one."""
    session.reset()
    session.prefill(prompt)
    rows = []
    for token in more:
        rows.append(session.score(TokenTree.root_only(token)).logits_NV[0])
        session.commit([0])
    return torch.stack(rows)


def test_only_what_differs_is_fed_and_the_logits_stay(fed: list[list[int]]) -> None:
    decoder = tiny_decoder()
    shared = SharedPrefixSession(decoder, Ops())
    prompts = [[*TEXT, 20, 21, 22], [*TEXT, 20, 33], [*TEXT, 20, 33], TEXT[:4], [7, 8], [*TEXT, 20]]
    expected = [answer(Session(decoder, Ops()), prompt, [40, 41]) for prompt in prompts]
    fed.clear()
    found = [answer(shared, prompt, [40, 41]) for prompt in prompts]
    assert fed == [[*TEXT, 20, 21, 22], [33], [7, 8], [*TEXT, 20]]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4


def test_whoever_wants_hidden_states_gets_those_of_all_tokens(fed: list[list[int]]) -> None:
    shared = SharedPrefixSession(tiny_decoder(), Ops())
    shared.prefill(TEXT)
    hidden = shared.prefill([*TEXT, 3], [2])
    assert hidden[2].shape[0] == len(TEXT) + 1 == shared.length
    assert fed == [TEXT, [*TEXT, 3]]


def test_what_was_rolled_back_is_fed_again(fed: list[list[int]]) -> None:
    shared = SharedPrefixSession(tiny_decoder(), Ops())
    shared.prefill(TEXT)
    shared.truncate(4)
    shared.feed([60, 61])
    shared.prefill(TEXT)
    assert fed == [TEXT, [60, 61], TEXT[4:]]
    assert shared.length == len(TEXT)
