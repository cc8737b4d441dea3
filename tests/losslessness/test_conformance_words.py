"""What the kit says of a fault: the sampling in words, and the tokens whose probability is wrong, with both numbers."""

from __future__ import annotations

import re

import pytest

from spec_sdk.contracts import SamplingParams, Verifier
from spec_sdk.ops import Decision, DrawnTree, Rows, Uniforms, accepts
from spec_sdk.testing import check_verifier
from spec_sdk.testing.wording import words_of


class FromTheTargetAgain(Verifier):
    """After a rejection it draws from p, not from the residual distribution."""

    name = "from_the_target_again"
    guarantee = "distribution"
    exact_when_greedy = True

    def rule(self, tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
        path = [0]
        while True:
            left = rows.left(path[-1])
            draw = next(iter(tree.draws_N[path[-1]]), None)
            if draw is None or not accepts(left.p(tree.token_N[draw.node]), left.q(draw), uniforms(1)[0]):
                return path, left.draw(uniforms(1)[0])
            path.append(draw.node)


def test_an_enumerated_fault_names_the_tokens_and_both_probabilities() -> None:
    with pytest.raises(AssertionError) as raised:
        check_verifier(FromTheTargetAgain(None))
    found = re.fullmatch(
        r"temperature 1.0, draws with replacement: the joint distribution of the tokens that a cycle emits is off the "
        r"target's by (\S+) \(enumerated\): it gives the tokens \[\d, \d\] with "
        r"probability (0\.\d+), the target (0\.\d+)",
        str(raised.value),
    )
    assert found is not None, str(raised.value)
    off, given, expected = map(float, found.groups())
    assert off > 0.01 and abs(abs(given - expected) - off) < 0.001


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(), "greedy"),
        (SamplingParams(temperature=0.7, top_p=0.9, seed=4), "temperature 0.7, top-p 0.9"),
        (
            SamplingParams(temperature=1.0, top_k=2, min_p=0.1, repetition_penalty=1.5),
            "temperature 1.0, top-k 2, min-p 0.1, repetition penalty 1.5",
        ),
    ],
)
def test_sampling_in_words(params: SamplingParams, words: str) -> None:
    assert words_of(params) == words
