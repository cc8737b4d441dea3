"""A draft model reads the last tokens of a long text, and goes on drafting behind its own context."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import UserError
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.asked_model import AskedModel
from spec_sdk_drafters.draft_window import WINDOW, DraftWindow
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_verifiers.multi_step import MultiStep
from tests.drafters.test_chosen_vocabulary import drafter_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder
from tests.support.tiny_models import TinyModels

GREEDY = SamplingParams()
FORMS: dict[str, dict[str, Any]] = {
    "chain": {"name": "draft_model"},
    "tree": {"name": "draft_model", "width": 3},
    "easyspec": {"name": "easyspec", "width": 3},
}


def proposed(drafter: Any, tokens: list[int], depth: int = 4) -> tuple[tuple[int, ...], tuple[int, ...]]:
    request = request_for(tokens, reference_sampler(GREEDY), 0)
    drafter.start([request.view])
    (tree,) = drafter.propose([request.view], [Budget(depth)])
    return tree.token_N, tree.parent_N


def text_of(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_what_is_read() -> None:
    window, whole = DraftWindow.of(16, 100), DraftWindow.of(None, 100)
    assert [window.first(tokens) for tokens in (0, 16, 17, 500)] == [0, 0, 1, 484] and window.room == 32
    assert [whole.first(tokens) for tokens in (0, 98, 99, 500)] == [0, 0, 49, 450] and whole.room == 100
    # where the context has no room for the window twice, what is read anew is half of that
    assert DraftWindow.of(50, 100) == DraftWindow(50, 50, 100) and DraftWindow.of(80, 100) == DraftWindow(50, 80, 100)
    assert DraftWindow.of(500, 100) == whole


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window", [16, None])
def test_behind_a_long_text_it_drafts_as_behind_its_end_alone(form: str, window: int | None) -> None:
    drafter = drafter_of(**FORMS[form], window=window)
    read, text = window or drafter.session.context // 2, text_of(drafter.session.context + 3)
    assert proposed(drafter, text) == proposed(drafter_of(**FORMS[form]), text[-1 - read :])
    assert drafter.session.tokens() == text[-1 - read :]
    # a short one is read whole, whatever the slot has of the long one
    assert proposed(drafter, text[:9]) == proposed(drafter_of(**FORMS[form]), text[:9])


@pytest.mark.parametrize("form", FORMS)
def test_it_begins_anew_where_it_has_no_more_room(form: str) -> None:
    used, accept, anew = drafter_of(**FORMS[form], window=16), random.Random(form), 0
    request = request_for(text_of(12), reference_sampler(GREEDY), 0)
    used.start([request.view])
    before, proposals = 0, 0
    while len(request.tokens) < 120:
        (tree,) = used.propose([request.view], [Budget(4)])
        length = used.session.length()
        assert length <= 32 and tree.depth >= 1
        fresh, again = drafter_of(**FORMS[form]), request_for(request.tokens[-length:], reference_sampler(GREEDY), 0)
        fresh.start([again.view])
        (fresh_tree,) = fresh.propose([again.view], [Budget(tree.depth)])
        assert (tree.token_N, tree.parent_N) == (fresh_tree.token_N, fresh_tree.parent_N)
        anew, before, proposals = anew + (length < before), length, proposals + 1
        path = tree.path_to(accept.randrange(tree.size))
        committed = [*(tree.token_N[node] for node in path[1:]), accept.randrange(VOCABULARY)]
        request.tokens.extend(committed)
        used.observe([request.view], [committed])
    assert anew >= 4 and proposals > 30


@pytest.mark.parametrize("form", FORMS)
def test_greedy_answers_are_those_of_plain_decoding(form: str) -> None:
    models = TinyModels()

    def answer(make_drafter: Callable[[], Drafter]) -> list[int]:
        request = request_for(text_of(20), reference_sampler(GREEDY), 0, max_new_tokens=60)
        session = Session(TorchExecutor(tiny_decoder("smollm", 0), Ops()))
        scheduler = Scheduler(session, make_drafter(), MultiStep(None), FixedPolicy(FixedConfig(depth=4)))
        return [token for tokens in scheduler.run(request) for token in tokens]

    windowed = answer(lambda: drafter_of(models, **FORMS[form], window=16))
    assert windowed == answer(lambda: NoDraft(None, models))


def test_what_catching_up_takes_at_most_is_told() -> None:
    drafter, whole = drafter_of(window=16), drafter_of()
    assert drafter.longest_catch_up == 16 and whole.longest_catch_up == whole.session.context - 2
    members = [{"name": "draft_model", "window": 16}, {"name": "draft_model", "window": 20}, {"name": "layer_skip"}]
    assert drafter_of(name="merged", members=members).longest_catch_up == 20
    asked = AskedModel(drafter, drafter.models.target.executor)
    request = request_for(text_of(50), reference_sampler(GREEDY), 0)
    asked.source_of(request.view)
    asked.begin([request.view], None)
    assert asked.propose([request.view], [Budget(2)], [0.0])[0].unseen == 16


def test_the_option() -> None:
    assert drafter_of().config.window == WINDOW
    with pytest.raises(UserError, match="drafter.window: 15 must be"):
        drafter_of(window=15)
