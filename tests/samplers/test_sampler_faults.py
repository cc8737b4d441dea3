"""A sampler that returns what is no distribution is told of in one line, by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import PluginFault, UserError
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.testing.tables import PlannedDraw, TableDrafter, TableModel
from spec_sdk_verifiers.multi_step import MultiStep

Make = Callable[[torch.Tensor], Any]

SAMPLED, GREEDY = SamplingParams(temperature=1.0), SamplingParams()
NOTHING = "its probabilities of row 0 are NaN, infinite, or 0 for every token$"


class Made(Sampler):
    name = "made"

    def __init__(self, params: SamplingParams, make: Make) -> None:
        super().__init__(None, params)
        self.make = make

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.make(logits_NV)
        return made


def ask(params: SamplingParams, make: Make, target: TableModel | None = None, drawn: bool = False) -> None:
    """A step with a sampler, whose fault is found by the verifier, or by the drafter where a token is drawn."""
    plan = [[PlannedDraw("with_replacement")]] if drawn else []
    drafter = TableDrafter([TableModel(6, 2)], plan)
    scheduler = Scheduler(target or TableModel(6, 1), drafter, MultiStep(None), DeepestPolicy(None))
    next(scheduler.run(request_for([1], Made(params, make), 0)))


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (
            lambda logits_NV: logits_NV.softmax(-1).tolist(),
            "its probabilities are of type list, and no tensor, they must",
        ),
        (
            lambda logits_NV: None,
            "its probabilities are of type NoneType, and no tensor, they must be floating-point of",
        ),
        (
            lambda logits_NV: logits_NV[0].softmax(-1),
            r"its probabilities are torch.float32 of shape \[6\], they must be",
        ),
        (lambda logits_NV: logits_NV.argmax(-1, keepdim=True).expand(-1, 6), "its probabilities are torch.int64 of sh"),
        (lambda logits_NV: logits_NV * float("nan"), NOTHING),
        (lambda logits_NV: torch.zeros_like(logits_NV), NOTHING),
    ],
    ids=["list", "none", "a row", "integers", "NaN", "zeros"],
)
def test_what_is_no_distribution_names_the_sampler(make: Make, fault: str, drawn: bool, params: SamplingParams) -> None:
    with pytest.raises(PluginFault, match=f"^sampler 'made': {fault}"):
        ask(params, make, drawn=drawn)


class Spoilt(TableModel):
    """Gives logits of NaN."""

    def score(self, *arguments: Any) -> Any:
        scores = super().score(*arguments)
        scores[0].logits_NV.fill_(float("nan"))
        return scores


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_logits_without_a_distribution_are_the_targets_fault(params: SamplingParams) -> None:
    with pytest.raises(UserError, match="^step 1, target: row 0 of the logits is NaN"):
        ask(params, lambda logits_NV: logits_NV.softmax(-1), Spoilt(6, 1))


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_what_it_raises_names_the_sampler(params: SamplingParams) -> None:
    def fail(logits_NV: torch.Tensor) -> None:
        raise KeyError("row")

    with pytest.raises(KeyError) as raised:
        ask(params, fail)
    assert raised.value.__notes__ == ["in sampler 'made'"]


@pytest.mark.parametrize("choices", [[1], None, torch.tensor([1.0]), torch.tensor(1)], ids=repr)
def test_choices_are_a_token_for_each_row(choices: Any) -> None:
    class Choosing(Made):
        def choices(self, logits_NV: torch.Tensor) -> Any:
            return choices

    scheduler = Scheduler(TableModel(6, 1), TableDrafter([], []), MultiStep(None), DeepestPolicy(None))
    with pytest.raises(PluginFault, match=r"^sampler 'made': its choices are .*, they must be integers of \[1\]$"):
        next(scheduler.run(request_for([1], Choosing(GREEDY, lambda logits_NV: None), 0)))
