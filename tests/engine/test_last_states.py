"""A drafter that wants the states of a prompt's last token alone gets these, and costs a prompt no more layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Hidden, Request
from spec_sdk.engine.tapped_states import TappedStates
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree
from tests.engine.test_scheduler import PROMPTS, engine_of, serve, tokens
from tests.support.tiny_models import TinyModels


def states(*rows: float) -> Hidden:
    return {2: torch.tensor([[row] for row in rows])}


def test_the_last_ones_are_kept() -> None:
    kept = TappedStates(last_only=True)
    kept.append(0, [5, 6, 7], {})
    assert kept.of(0) == {} and kept.shared(0, [5, 6, 9]) == 2
    kept.append(0, [8], states(1.0))
    kept.append(0, [9, 10], states(2.0, 3.0))
    assert kept.of(0)[2].tolist() == [[3.0]]
    kept.truncate(0, 6)
    assert kept.of(0)[2].tolist() == [[3.0]], "nothing is gone"
    kept.truncate(0, 5)
    assert kept.of(0) == {} and kept.shared(0, [5, 6, 7, 8, 9, 10]) == 5
    kept.append(0, [11], states(4.0))
    assert kept.of(0)[2].tolist() == [[4.0]]


class Noting(Drafter):
    """Drafts nothing and notes what it is told."""

    name = "noting"
    taps = (5,)
    taps_last_only = True

    def __init__(self) -> None:
        super().__init__(None, TinyModels())
        self.begun: list[torch.Tensor] = []
        self.observed: list[torch.Tensor] = []

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        assert prompt_hidden is not None
        self.begun += [hidden[5] for hidden in prompt_hidden]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        return TokenTree.root_only(request.pending_token)

    def observe(self, requests: Any, committed: Any, path_hidden: Sequence[Hidden] | None = None) -> None:
        assert path_hidden is not None
        self.observed += [hidden[5] for hidden in path_hidden]


def test_prompts_are_fed_without_taps_up_to_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[tuple[int, tuple[int, ...]]] = []
    prefill = Session.prefill

    def spy(self: Session, slot: int, new: Sequence[int], taps: Sequence[int] = ()) -> Any:
        fed.append((len(new), tuple(taps)))
        return prefill(self, slot, new, taps)

    monkeypatch.setattr("spec_sdk.engine.scheduler.PREFILL_CHUNK", 4)
    monkeypatch.setattr(Session, "prefill", spy)
    drafter, prompt = Noting(), [5, 9, 17, 5, 9, 17, 5, 9, 11, 4]
    events, errors = serve(engine_of(drafter=drafter), [prompt], new_tokens=3)
    # the pending token is the first tree's root
    assert not errors and fed == [(4, ()), (4, ()), (0, ()), (1, (5,))]
    (last,) = drafter.begun
    expected = prefill(engine_of().target, 0, prompt[:-1], (5,))[5][-1:]
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-4)
    assert [states.shape[0] for states in drafter.observed] == [1] * len(drafter.observed) and drafter.observed
    assert len(tokens(events[0])) == 3


def test_a_text_that_the_cache_has_goes_on_without_them() -> None:
    """Of a prompt whose tokens are all in the cache nothing is fed: there is the state of its end, or none."""
    drafter = Noting()
    engine = engine_of(slots=1, drafter=drafter)
    for prompt in (PROMPTS[0], PROMPTS[0], PROMPTS[0][:5], [7]):
        engine.add(TokenRequest(prompt, request_id=0, max_new_tokens=4, emit=lambda event: None))
        while engine.busy:
            engine.step()
    first, again, shorter, single = drafter.begun
    assert first.shape[0] == 1 and single.shape[0] == 0
    # what followed the prompt was forgotten, and with it the last state
    assert again.shape[0] == 0 and shorter.shape[0] == 0
