"""Answers by their tokens: some ruled out, some alone, some to begin with, some more or less probable.

Legend: N rows of logits, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.contracts import AnyTokens, Constraint, Matcher, option
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer

LARGEST_BIAS = 100.0


@dataclass
class TokensConfig:
    """Options of ``constraint=tokens``. A token is its id, or a text that is one token."""

    banned: list[Any] = option([], "tokens that no answer has: [17, ' never']")
    allowed: list[Any] = option([], "the only tokens of answers, besides those that end them; []: all")
    begin: list[Any] = option([], "the tokens that every answer begins with, in this order")
    bias: dict[Any, float] = option({}, "token → what is added to its logit, between -100 and 100: {17: -2.5}")


class TokensConstraint(Constraint):
    """Tokens that are banned, the only ones, or forced at the begin; and a bias on the logits of others."""

    name = "tokens"
    Config = TokensConfig
    config: TokensConfig

    def compile(self, tokenizer: Tokenizer, vocabulary: int) -> Matcher:
        config = self.config

        def tokens(given: Sequence[Any], name: str) -> list[int]:
            return [_token(item, f"constraint.{name}", tokenizer, vocabulary) for item in given]

        banned, allowed, begin = (tokens(getattr(config, name), name) for name in ("banned", "allowed", "begin"))
        bias = dict(zip(tokens(list(config.bias), "bias"), config.bias.values(), strict=True))
        for token, value in bias.items():
            if not abs(value) <= LARGEST_BIAS:
                raise UserError(f"constraint.bias: {value} for token {token} must be between -100 and 100")
        if not (banned or allowed or begin or bias):
            return AnyTokens()
        kept_V = torch.ones(vocabulary, dtype=torch.bool)
        if allowed:
            kept_V[:] = False
            kept_V[[*allowed, *tokenizer.stop_ids]] = True
        kept_V[banned] = False
        if not bool(kept_V.any()):
            raise UserError("constraint.banned: no token is left; ban fewer")
        if refused := [token for token in begin if not kept_V[token]]:
            raise UserError(f"constraint.begin: token {refused[0]} is banned, or not among constraint.allowed")
        return TokensMatcher(kept_V, begin, bias)


class TokensMatcher(Matcher):
    """Keeps nothing of an answer. ``kept_V``: tokens that there are; ``begin``: the first ones of every answer;
    ``bias``: token → what is added to its logit.
    """

    def __init__(self, kept_V: torch.Tensor, begin: Sequence[int], bias: Mapping[int, float]) -> None:
        self._kept_V = kept_V
        self._begin = list(begin)
        bias_V = torch.zeros(len(kept_V))
        bias_V[list(bias)] = torch.tensor(list(bias.values()))
        # what is ruled out has a bias of -inf
        self._bias_V = bias_V.masked_fill(~kept_V, -math.inf)
        self._known_on: dict[tuple[torch.device, torch.dtype, int], torch.Tensor] = {}

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        logits_NV += self._on(logits_NV)
        for row, path in enumerate(paths):
            if (place := len(answer) + len(path)) < len(self._begin):
                # of logits that have none for it nothing is left
                wanted = slice(self._begin[place], self._begin[place] + 1)
                score = logits_NV[row, wanted].clone()
                logits_NV[row] = -math.inf
                logits_NV[row, wanted] = score

    def allows(self, answer: Sequence[int], path: Sequence[int], token: int) -> bool:
        place = len(answer) + len(path)
        if place < len(self._begin):
            return token == self._begin[place]
        return token < len(self._kept_V) and bool(self._kept_V[token])

    def forced(self, answer: Sequence[int], path: Sequence[int]) -> list[int]:
        return self._begin[len(answer) + len(path) :]

    def _on(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """The bias for logits of this device, type and width; sent to a device once."""
        key = (logits_NV.device, logits_NV.dtype, logits_NV.shape[-1])
        if key not in self._known_on:
            bias_V = F.pad(self._bias_V[: key[2]], (0, max(0, key[2] - len(self._bias_V))), value=-math.inf)
            self._known_on[key] = bias_V.to(key[0], key[1])
        return self._known_on[key]


def _token(item: object, where: str, tokenizer: Tokenizer, vocabulary: int) -> int:
    if isinstance(item, str):
        ids = tokenizer.encode(item, add_special_tokens=False)
        if len(ids) != 1:
            raise UserError(f"{where}: {item!r} is {len(ids)} tokens, {ids}; name tokens one by one")
        return ids[0]
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < vocabulary:
        raise UserError(f"{where}: {item!r} must be a text of one token, or a token id from 0 to {vocabulary - 1}")
    return item
