"""Verifiers whose random numbers are followed through comparisons with whole tensors, and one whose cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import Verifier
from spec_sdk.ops import Decision, DrawnTree, Rows, Uniforms
from spec_sdk.testing.check import Skipped
from spec_sdk.testing.verifiers import verifier_checks


class AgainstTensors(Verifier):
    """Draws each token by comparing a number with a whole cumulated distribution, in some way."""

    name = "against_tensors"
    guarantee = "distribution"
    exact_when_greedy = True
    comparison: str

    def rule(self, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
        cdf_V, u = rows.target(0).double().cumsum(0), uniforms(1)[0]
        goal = u * float(cdf_V[-1])
        beyond: Any = {
            "tensor first": lambda: cdf_V > goal,
            "number first": lambda: goal < cdf_V,
            "not below": lambda: ~(cdf_V <= goal),
            "numpy": lambda: torch.tensor((cdf_V.numpy() > goal).astype(bool)),
            "another token": lambda: cdf_V > goal * 0.9,
            "a tensor of it": lambda: cdf_V > torch.tensor(goal),
        }[self.comparison]()
        return [0], int(beyond.nonzero()[0])


@pytest.mark.parametrize("comparison", ["tensor first", "number first", "not below", "numpy"])
def test_numbers_that_are_compared_with_tensors_are_followed(comparison: str) -> None:
    verifier = AgainstTensors(None)
    verifier.comparison = comparison
    *_, outcomes, _ = verifier_checks(verifier)
    words = outcomes.run()
    assert words is not None and words.endswith(" cycles") and int(words.split()[0]) > 10


def test_a_wrong_threshold_is_found_in_a_tensor_too() -> None:
    verifier = AgainstTensors(None)
    verifier.comparison = "another token"
    *_, outcomes, _ = verifier_checks(verifier)
    with pytest.raises(AssertionError, match="the joint distribution of the tokens that a cycle emits is"):
        outcomes.run()


def test_outcomes_of_which_none_can_be_tried_are_skipped() -> None:
    verifier = AgainstTensors(None)
    verifier.comparison = "a tensor of it"
    words = verifier_checks(verifier)[-2].run()
    assert isinstance(words, Skipped)
    assert words.startswith("0 cycles; the next cannot be enumerated (a random number was used otherwise than by")
