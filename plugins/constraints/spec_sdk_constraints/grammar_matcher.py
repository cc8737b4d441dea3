"""A grammar's masks along one answer and its drafted tokens, from llguidance.

Legend: N rows of logits, V vocabulary, B bytes of a mask, a bit per token, the lowest bit first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher

from spec_sdk.contracts import Matcher
from spec_sdk.errors import ConstraintLimit, UserError
from spec_sdk.ops.uploads import numbers_on, to_device
from spec_sdk_constraints.forced_text import forced_tokens
from spec_sdk_constraints.grammar_parsers import GrammarParsers
from spec_sdk_constraints.mask_tree import Mask, Place, Where, allowed_in, only_token


class GrammarMatcher(Matcher):
    """Walks one parser over the answer and the paths of a token tree: forward by tokens, back by rolling them back.

    What was found at a place is kept there. So a mask is computed once, whether a drafter, the tree before the target's
    pass or the target's logits ask for it, and the parser never begins again. When the answer goes on, the place it
    goes on to becomes the first, with what is known behind it, and the others are dropped.

    ``parsers``: of the grammar, one of which it takes. ``ends``: tokens that end an answer. ``mask_bytes``: B.
    """

    def __init__(self, parsers: GrammarParsers, ends: frozenset[int], mask_bytes: int, name: str) -> None:
        self._parsers = parsers
        self._number = parsers.new_answer()
        self._ends = ends
        self._mask_bytes = mask_bytes
        self._name = name
        self._end_mask = self._mask_of(ends)
        self._known_answer: list[int] = []
        self._known_path: list[int] = []
        self._known_place = Place(Where.inside)
        self._take_parser()

    def begin(self) -> GrammarMatcher:
        return GrammarMatcher(self._parsers, self._ends, self._mask_bytes, self._name)

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        self._follow(answer)
        rows, masks = list[int](), list[Mask]()
        for row, path in enumerate(paths):
            place = self._place(path)
            if place.where is not Where.outside:
                rows.append(row)
                masks.append(self._mask(place, path))
        if not masks:
            return
        vocabulary, device = logits_NV.shape[-1], logits_NV.device
        # token ids beyond the mask are padding rows of the model: nothing may name them
        bits = np.unpackbits(np.stack(masks), axis=1, bitorder="little", count=vocabulary)
        hidden_KV = to_device(torch.from_numpy(bits == 0), device)
        if len(rows) == len(paths):
            logits_NV.masked_fill_(hidden_KV, float("-inf"))
        else:
            kept_K = numbers_on(device, rows)
            logits_NV[kept_K] = logits_NV[kept_K].masked_fill_(hidden_KV, float("-inf"))

    def allows(self, answer: Sequence[int], path: Sequence[int], token: int) -> bool:
        self._follow(answer)
        place = self._place(path)
        return place.where is not Where.outside and allowed_in(self._mask(place, path), token)

    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        self._follow(answer)
        place = self._place(path)
        if place.where is not Where.inside:
            return []
        if place.forced is None:
            place.forced = self._ask(path, self._forced_tokens)
            if not place.forced and (only := only_token(self._mask(place, path))) is not None:
                place.forced = [only]
        return place.forced

    def _follow(self, answer: Sequence[int]) -> None:
        """Take in what the answer has come to since the last call."""
        known = self._known_answer
        if len(answer) == len(known):
            return
        if len(answer) < len(known):
            self._known_answer, self._known_place, known = [], Place(Where.inside), []
            self._take_parser()
        new = list(answer[len(known) :])
        place = self._place(new)
        if place.where is Where.outside:
            raise UserError(f"constraint: {self._name} has no answer with the tokens {new} after {len(known)} others")
        if place.where is Where.inside:
            self._ask(new)
        self._known_path = []
        self._known_answer, self._known_place = [*known, *new], place

    def _place(self, path: Sequence[int]) -> Place:
        """What ``path`` leads to from the end of the answer."""
        place = self._known_place
        for depth, token in enumerate(path):
            if place.where is Where.outside:
                return place
            following = place.after.get(token)
            if following is None:
                allowed = allowed_in(self._mask(place, path[:depth]), token)
                where = Where.outside if not allowed else Where.end if token in self._ends else Where.inside
                following = place.after[token] = Place(where)
            place = following
        return place

    def _mask(self, place: Place, path: Sequence[int]) -> Mask:
        """What may follow ``path``, which leads to ``place``; behind the end, more of it."""
        if place.limit:
            raise ConstraintLimit(place.limit)
        if place.mask is None:
            try:
                place.mask = self._end_mask if place.where is Where.end else self._computed(path)
            except ConstraintLimit as error:
                place.limit = str(error)
                raise
        return place.mask

    def _computed(self, path: Sequence[int]) -> Mask:
        mask: Mask = np.zeros(self._mask_bytes, np.uint8)
        self._parsers.made_mask(self._number)
        self._ask(path, lambda parser: parser.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes))
        if not mask.any():
            raise self._limit(path, "the model has no token that could come next")
        only = only_token(mask)
        if only is not None and self._parsers.tokenizer.is_special_token(only):
            forced = self._ask(path, self._forced_tokens)
            return self._mask_of(forced[:1]) if forced else mask
        return mask

    def _forced_tokens(self, parser: LLMatcher) -> list[int]:
        return forced_tokens(parser, self._parsers.tokenizer)

    def _mask_of(self, tokens: Iterable[int]) -> Mask:
        mask: Mask = np.zeros(self._mask_bytes, np.uint8)
        for token in tokens:
            mask[token >> 3] |= np.uint8(1 << (token & 7))
        return mask

    def _ask(self, path: Sequence[int], question: Callable[[LLMatcher], Any] = LLMatcher.is_error) -> Any:
        """What the parser says behind ``path``, where it is left; another parser is asked where its lexer is full."""
        while True:
            self._move(path)
            said = None if self._known_parser.is_error() else question(self._known_parser)
            if not self._known_parser.is_error():
                return said
            reason = fault_of(self._known_parser)
            if not self._begin_anew():
                raise self._limit(path, reason)

    def _move(self, path: Sequence[int]) -> None:
        """Back to where ``path`` parts from where the parser is, then forward."""
        here, common = self._known_path, 0
        while common < min(len(here), len(path)) and here[common] == path[common]:
            common += 1
        if len(here) > common:
            self._known_parser.rollback(len(here) - common)
        if ahead := list(path[common:]):
            self._known_parser.consume_tokens(ahead)
        self._known_path = list(path)

    def _take_parser(self) -> None:
        """Have a parser at the end of the answer."""
        self._copied_of = self._parsers.first
        self._known_path = []
        self._known_parser = self._copied_of.deep_copy()
        if self._known_answer:
            self._known_parser.consume_tokens(self._known_answer)

    def _begin_anew(self) -> bool:
        """Have a parser whose lexer is not full, if this one's may be; whether there is another one now."""
        if self._copied_of is self._parsers.first and not self._parsers.renew():
            return False
        self._take_parser()
        return True

    def _limit(self, path: Sequence[int], reason: str) -> ConstraintLimit:
        """What ends an answer that its grammar cannot be followed in any further, behind ``path``."""
        if self._known_parser.is_error():
            # it says nothing any more, of other paths either
            self._take_parser()
        tokens = len(self._known_answer) + len(path)
        if not tokens and reason == NOTHING_FOLLOWS:
            return ConstraintLimit(f"constraint: {self._name} allows no answer at all")
        return ConstraintLimit(f"constraint: {self._name} cannot be followed beyond {tokens} tokens: {reason}")


NOTHING_FOLLOWS = "NoExtensionBias"
"""What llguidance says where no byte may come next."""


def fault_of(parser: LLMatcher) -> str:
    """What went wrong, the first line of it."""
    return parser.get_error().strip().partition("\n")[0]
