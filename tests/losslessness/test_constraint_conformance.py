"""The kit's checks of constraints: sound ones pass, and each wrong one is found.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import AnyTokens, Constraint, Matcher
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.testing import check_constraint
from spec_sdk_constraints.choice import ChoiceConfig, ChoiceConstraint
from spec_sdk_constraints.grammar import GrammarConfig, GrammarConstraint
from spec_sdk_constraints.no_constraint import NoConstraint
from spec_sdk_constraints.regex import RegexConfig, RegexConstraint
from spec_sdk_constraints.tokens import TokensConfig, TokensConstraint
from tests.support.spelling_tokenizer import END, VOCABULARY, A, B, SpellingTokenizer

TOKENIZER: Any = SpellingTokenizer()
SOUND: dict[str, Constraint] = {
    "none": NoConstraint(None),
    "regex": RegexConstraint(RegexConfig("(ab|ba)+")),
    "choice": ChoiceConstraint(ChoiceConfig(["ab", "abb", "b"])),
    "grammar": GrammarConstraint(GrammarConfig(text='start: "a" start "b" | "ab"')),
    "tokens": TokensConstraint(TokensConfig(banned=[END], begin=[A, B])),
    "allowed tokens": TokensConstraint(TokensConfig(allowed=[A, B], bias={A: 1.0})),
}


class Made(Constraint):
    """A constraint whose matcher is given."""

    name = "made"

    def __init__(self, matcher: Matcher) -> None:
        super().__init__(None)
        self.matcher = matcher

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        return self.matcher


class Odd(Matcher):
    """Right: tokens of odd ids follow those of even ids, and END may always come."""

    def begin(self) -> Odd:
        return type(self)()

    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        text = [*answer, *path]
        return [END, B if text and text[-1] == A else A]

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            hidden_V = torch.ones(logits_NV.shape[-1], dtype=torch.bool)
            hidden_V[[token for token in self.left(answer, path) if token < logits_NV.shape[-1]]] = False
            logits_NV[row, hidden_V] = float("-inf")


class OnlyTheAnswer(Odd):
    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return super().left(answer, ())


class OnlyThePath(Odd):
    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return super().left((), path)


class Forgetful(Odd):
    """Takes every call for a step forward."""

    calls = 0

    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        self.calls += 1
        return [END, self.calls % 2]


class DeadEnd(Odd):
    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [] if len(answer) + len(path) > 3 else [A]


class ForcesWhatIsRuledOut(Odd):
    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [A, A]


class ForcesWhereThereIsAChoice(Odd):
    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return self.left(answer, path)[:1]


class PrunesTooMuch(Odd):
    def allows(self, answer: Sequence[int], path: Sequence[int], token: int) -> bool:
        return token == A


class PrunesBehindDrafts(Odd):
    def allows(self, answer: Sequence[int], path: Sequence[int], token: int) -> bool:
        return not path


class OnlyA(Odd):
    """One token after two of an answer; then there is a choice again."""

    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [A] if len(answer) + len(path) == 2 else [A, B, END]

    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [A] if len(answer) + len(path) == 2 else []


class ForcesBehindWhatItForced(OnlyA):
    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [B] if len(answer) + len(path) == 3 and path else super().forced(answer, path)


class ForcesBehindDrafts(Odd):
    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return [A] if path else []


class ReturnsItsMask(Odd):
    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> Any:
        masked_NV = logits_NV.clone()
        super().apply(masked_NV, answer, paths)
        return masked_NV


class ReturnsAView(Odd):
    """As if what it returns were what may follow."""

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> Any:
        super().apply(logits_NV, answer, paths)
        return logits_NV[:, :2]


class ReturnsWhetherItDid(Odd):
    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> Any:
        super().apply(logits_NV, answer, paths)
        return True


class WorksInPlace(Odd):
    """Right, too."""

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> Any:
        super().apply(logits_NV, answer, paths)
        return logits_NV.add_(0)


class BeginsNothing(Odd):
    def begin(self) -> Any:
        return None


class Shared(Odd):
    """One state for all answers."""

    longest = 0

    def begin(self) -> Odd:
        return self

    def left(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        self.longest = max(self.longest, len(answer) + len(path))
        return [END, A if self.longest > 5 else B]


WRONG: dict[type[Matcher], str] = {
    OnlyTheAnswer: "its mask (leaves|rules out) token",
    OnlyThePath: "its mask (leaves|rules out) token",
    Forgetful: "mask",
    DeadEnd: "no token is left",
    ForcesWhatIsRuledOut: "is forced",
    ForcesWhereThereIsAChoice: "is forced, and its mask leaves",
    PrunesTooMuch: "is in the mask, and not allowed",
    PrunesBehindDrafts: "and the drafted tokens .* is in the mask, and not allowed",
    ForcesBehindWhatItForced: "and the drafted tokens .* is forced, and its mask leaves 3 tokens",
    ForcesBehindDrafts: "and the drafted tokens .* is forced, ",
    ReturnsItsMask: "apply returned other logits",
    ReturnsAView: "apply returned a view of its logits, which nobody reads",
    ReturnsWhetherItDid: "apply returned True, which nobody reads",
    BeginsNothing: "its begin returned None, which is no matcher",
    Shared: "new ones begin with another mask",
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_ones_pass(name: str) -> None:
    check_constraint(SOUND[name], TOKENIZER, VOCABULARY)


@pytest.mark.parametrize("matcher", [Odd, OnlyA, WorksInPlace, AnyTokens])
def test_one_of_ones_own_passes(matcher: type[Matcher]) -> None:
    check_constraint(Made(matcher()), TOKENIZER, VOCABULARY)


@pytest.mark.parametrize("no_matcher", [7, None])
def test_what_is_compiled_is_a_matcher(no_matcher: Any) -> None:
    with pytest.raises(AssertionError, match=f"its compile returned {no_matcher}, which is no matcher"):
        check_constraint(Made(no_matcher), TOKENIZER, VOCABULARY)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_ones_are_found(wrong: type[Matcher]) -> None:
    with pytest.raises(AssertionError, match=WRONG[wrong]):
        check_constraint(Made(wrong()), TOKENIZER, VOCABULARY)
