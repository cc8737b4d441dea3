"""Which trees a device draws by itself, and what a growth is given of them.

Legend: K nodes of a level, W children of each, R tokens.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import SamplingParams, TreeShape
from spec_sdk.errors import UnusableLogits
from spec_sdk.model.draft_levels import DraftedLevel
from spec_sdk.ops import Recipe
from spec_sdk.ops.kept_tokens import numbers_of
from spec_sdk.plugin import Random
from spec_sdk_drafters.draft_model import DraftModelDrafter
from spec_sdk_drafters.levels_at_once import MOST_DRAWN, Tries, draws_at_once, draws_of, known_logits
from spec_sdk_samplers.exact import ExactConfig, ExactSampler


def drawn(*token_KW: list[int]) -> DraftedLevel:
    return DraftedLevel(torch.tensor(token_KW), logits_KR=torch.zeros(len(token_KW), 8))


@pytest.mark.parametrize(
    ("widths", "params", "expected"),
    [
        ((4, 1, 1), SamplingParams(temperature=0.8), True),
        ((4, 1, 1), SamplingParams(temperature=0.0), False),
        ((1, 1, 1), SamplingParams(temperature=0.0), True),
        ((4, 1, 1), SamplingParams(temperature=0.8, top_p=0.9), True),
        ((4, 1, 1), SamplingParams(temperature=0.8, top_k=4), True),
        ((4, 1, 1), SamplingParams(temperature=0.8, top_k=3), False),
        ((MOST_DRAWN,), SamplingParams(temperature=0.8), True),
        ((MOST_DRAWN - 1, 1), SamplingParams(temperature=0.8), False),
    ],
)
def test_what_a_device_draws(widths: tuple[int, ...], params: SamplingParams, expected: bool) -> None:
    request: Any = SimpleNamespace(sampler=ExactSampler(ExactConfig(), params))
    assert draws_at_once(TreeShape(widths, 1.0), request) is expected


def test_a_sampler_that_draws_in_a_way_of_its_own_draws_itself() -> None:
    class LastFirst(ExactSampler):
        def draw(self, p_V: torch.Tensor, random: Random) -> int:
            return len(p_V) - 1 - super().draw(p_V.flip(0), random)

    params = SamplingParams(temperature=0.8)
    for sampler, expected in ((ExactSampler, True), (LastFirst, False)):
        request: Any = SimpleNamespace(sampler=sampler(ExactConfig(), params))
        assert draws_at_once(TreeShape((1, 1), 1.0), request) is expected


def test_levels_below_a_node_that_ran_out_are_not_looked_at() -> None:
    """Nothing follows from what a device drew behind a token that it did not have."""
    drafter: Any = SimpleNamespace(vocabulary=8)
    given = DraftModelDrafter._known_logits(drafter, [drawn([3, 5]), drawn([1], [2])])
    assert given is not None and [one.drawn_KW for one in given] == [((3, 5),), ((1,), (2,))]
    assert DraftModelDrafter._known_logits(drafter, [drawn([3, -1]), drawn([1], [-1])]) is None
    with pytest.raises(UnusableLogits):
        known_logits(drawn([3], [-1]), 8)


def test_drafts_that_run_out_too_often_are_given_up() -> None:
    """Each of them is made a second time; one in between costs less than the others save."""
    seldom, often = Tries(), Tries()
    for i in range(30):
        assert seldom.pay
        seldom.note(ran_out=i % 6 == 0)
    often.note(ran_out=True)
    assert often.pay
    often.note(ran_out=True)
    assert not often.pay


def test_draws_go_by_the_sampling_that_verdicts_go_by() -> None:
    """A sampler may tell another one than its options."""
    told = SamplingParams(temperature=0.5, top_k=7)
    rng = torch.Generator().manual_seed(0)
    sampler: Any = SimpleNamespace(recipe=Recipe(told), params=SamplingParams(temperature=1.0))
    request: Any = SimpleNamespace(sampler=sampler, rng=rng)
    assert draws_of(request, 2)[2:] == numbers_of(told)
