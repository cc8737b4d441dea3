"""The contract of a constraint: what an answer may consist of, as a mask over tokens at every node of a tree.

Legend: N rows of logits, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch

from spec_sdk.errors import PluginFault
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.ops.uploads import numbers_on
from spec_sdk.plugin import Plugin


class Matcher(ABC):
    """Follows one answer: which tokens may come next, at its end and behind drafted tokens.

    Its mask is laid on the logits of target and draft model before probabilities are made of them. So what a verifier
    and a sampler guarantee, they guarantee of plain decoding under the same masks. A mask may depend on the tokens
    before it alone: on no random number, and on nothing that other requests do.

    ``constraint_name``: of the constraint that it was compiled from, for messages; set by whoever compiles it.
    """

    constraint_name: str = ""

    def begin(self) -> Matcher:
        """A matcher for another answer, at its begin. One that keeps nothing of an answer may return itself."""
        return self

    @abstractmethod
    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Write -inf to every logit whose token may not follow.

        Row i is what follows ``answer``, the tokens of the answer so far (without the prompt), and then ``paths[i]``,
        drafted tokens. Some token of every row must be left; a row whose path may not follow itself is never looked at
        and may stay as it is. Token ids beyond V are passed over; V may be larger or smaller than the ``vocabulary``
        of :meth:`Constraint.compile`, such as a draft model's. From call to call the answer grows, and paths are
        asked for again: what is worth keeping of them is the matcher's to keep. Raises ConstraintLimit for an answer
        that it cannot follow any further.
        """

    def allows(self, answer: Sequence[int], path: Sequence[int], token: int) -> bool:
        """Whether ``token`` may follow ``answer`` and ``path``; True where that is not worth finding out.

        Drafted tokens that may not follow are taken out of a tree before the target's pass.
        """
        return True

    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        """Tokens that must follow ``answer`` and ``path``, one after the other: the mask of each leaves it alone. None
        where there is a choice, or where it is not worth finding out.

        They are taken without the target's word: one that is not the only one left changes the distribution.
        """
        return []


def begun(first: Matcher) -> Matcher:
    """A matcher for another answer. Raises PluginFault where ``begin`` gives none."""
    matcher: object = first.begin()
    if not isinstance(matcher, Matcher):
        raise PluginFault(f"{in_words(first)}: its begin returned {matcher!r}, which is no matcher")
    return named(matcher, first.constraint_name)


def named(matcher: Matcher, constraint: str) -> Matcher:
    """The matcher, as one that a constraint of this name was compiled to."""
    # a frozen dataclass takes no attribute otherwise
    object.__setattr__(matcher, "constraint_name", constraint)
    return matcher


def called(matcher: Matcher) -> str:
    """The name of its constraint, or the class of a matcher that was compiled from none."""
    return matcher.constraint_name or type(matcher).__name__


def in_words(matcher: Matcher) -> str:
    """What messages call it: ``constraint 'regex'``."""
    return f"constraint {called(matcher)!r}"


class Constraint(Plugin, ABC):
    """What answers may consist of, chosen by name and options. It is compiled once for a model, for many answers."""

    kind = "constraint"

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def key(self) -> Hashable:
        """Equal for two constraints of one class that compile to the same, so that the second need not be compiled."""
        return repr(self.config)

    @abstractmethod
    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        """The matcher from which each answer's begins (:meth:`Matcher.begin`); AnyTokens if everything is allowed.

        ``vocabulary``: rows V of the model's output; logits may be wider, by rows that name no token. Ends of an answer
        are ``tokenizer.stop_ids``. Takes no longer than a few seconds, and runs beside other threads. Raises UserError,
        naming the option, for what cannot be compiled.
        """


class AnyTokens(Matcher):
    """Rules nothing out, and costs nothing: answers are as without a constraint."""

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        pass


class SuppressedTokens(Matcher):
    """Tokens that no answer has, and tokens that no answer begins with."""

    def __init__(self, everywhere: Collection[int] = (), at_begin: Collection[int] = ()) -> None:
        self._everywhere = _Ids(everywhere)
        self._at_begin = _Ids({*everywhere, *at_begin})

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        first = [] if answer else [row for row, path in enumerate(paths) if not path]
        logits_NV.index_fill_(1, self._everywhere.within(logits_NV), float("-inf"))
        for row in first:
            logits_NV[row].index_fill_(0, self._at_begin.within(logits_NV), float("-inf"))


class OnlyTokens(Matcher):
    """An answer of these tokens alone."""

    def __init__(self, tokens: Collection[int]) -> None:
        self._tokens = _Ids(tokens)

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        hidden_V = torch.ones(logits_NV.shape[-1], dtype=torch.bool, device=logits_NV.device)
        hidden_V[self._tokens.within(logits_NV)] = False
        logits_NV.masked_fill_(hidden_V, float("-inf"))


class _Ids:
    """Token ids, sent to each device once."""

    def __init__(self, tokens: Collection[int]) -> None:
        self._tokens = sorted(set(tokens))
        self._sent: dict[tuple[int, torch.device], torch.Tensor] = {}

    def within(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Those that the logits have a column for, beside them."""
        key = logits_NV.shape[-1], logits_NV.device
        if key not in self._sent:
            self._sent[key] = numbers_on(logits_NV.device, [token for token in self._tokens if 0 <= token < key[0]])
        return self._sent[key]
