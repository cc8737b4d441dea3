"""A constraint that is no sound plugin is told in one line, by its name, and ends its own request alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.contracts import AnyTokens, Constraint, Matcher
from spec_sdk.errors import PluginFault
from spec_sdk.model.tokenizer import Tokenizer
from tests.api.conftest import OVERRIDES, PROMPTS


class Dead(Matcher):
    """Leaves nothing after so many tokens."""

    def __init__(self, after: int) -> None:
        self.after = after

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            if len(answer) + len(path) >= self.after:
                logits_NV[row] = float("-inf")


class Spoils(Matcher):
    """Writes what is no mask."""

    def __init__(self, value: float) -> None:
        self.value = value

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        logits_NV[:, 3] = self.value


class Raises(Matcher):
    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        raise KeyError("state")


class BeginsNothing(Dead):
    def begin(self) -> Any:
        return None


class Made(Constraint):
    name = "made"

    def __init__(self, compiled: Any) -> None:
        super().__init__(repr(compiled))
        self.compiled = compiled

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        compiled: Matcher = self.compiled
        return compiled


@pytest.mark.parametrize(
    ("compiled", "fault"),
    [
        (BeginsNothing(9), "^constraint 'made': its begin returned None, which is no matcher$"),
        (7, "^constraint 'made': its compile returned 7, which is no matcher$"),
        (
            None,
            r"^constraint 'made': its compile returned None, which is no matcher \(AnyTokens is one that rules noth",
        ),
    ],
)
def test_what_gives_no_matcher_is_refused(engine: Engine, compiled: Any, fault: str) -> None:
    with pytest.raises(PluginFault, match=fault):
        engine.generate(PROMPTS[0], constraint=Made(compiled))
    assert not engine.pipeline.engine.busy


def test_a_constraint_that_rules_nothing_out_costs_nothing(engine: Engine) -> None:
    [plain] = engine.generate(PROMPTS[0])
    for constraint in (Made(AnyTokens()), AnyTokens()):
        assert engine.generate(PROMPTS[0], constraint=constraint)[0].tokens == plain.tokens
        assert engine.pipeline.constraints.of(constraint) is None


def test_a_matcher_of_ones_own_is_told_by_its_class(engine: Engine) -> None:
    with pytest.raises(PluginFault, match="^constraint 'BeginsNothing': its begin returned None"):
        engine.generate(PROMPTS[0], constraint=BeginsNothing(9))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("pipeline", "after"), [("prompt_lookup", 0), ("prompt_lookup", 3), ("easyspec_paper", 0)])
def test_a_mask_that_leaves_no_token_is_its_constraints_fault(
    checkpoint: Path, pipeline: str, after: int, temperature: float
) -> None:
    """Found behind the target's pass, or where a draft model asks first."""
    engine = Engine.from_pipeline(pipeline, target=checkpoint, overrides=OVERRIDES)
    fault = f"^constraint 'made': after {after} tokens of an answer its mask leaves none that may follow$"
    with pytest.raises(PluginFault, match=fault):
        engine.generate(PROMPTS[0], constraint=Made(Dead(after)), temperature=temperature)
    assert engine.generate(PROMPTS[1])[0].finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("pipeline", ["prompt_lookup", "easyspec_paper"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mask_of_anything_but_minus_infinity_is_its_constraints_fault(
    checkpoint: Path, pipeline: str, temperature: float, value: float
) -> None:
    engine = Engine.from_pipeline(pipeline, target=checkpoint, overrides=OVERRIDES)
    fault = "^constraint 'made': after 0 tokens of an answer its mask has NaN or infinity where it is to have -inf$"
    with pytest.raises(PluginFault, match=fault):
        engine.generate(PROMPTS[0], constraint=Made(Spoils(value)), temperature=temperature)


def test_what_a_matcher_raises_names_its_constraint(engine: Engine) -> None:
    with pytest.raises(KeyError, match="state") as raised:
        engine.generate(PROMPTS[0], constraint=Made(Raises()))
    assert raised.value.__notes__ == ["in constraint 'made'"]
