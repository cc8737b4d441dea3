"""A session for requests that begin alike: what two prompts share is prefilled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops


class SharedPrefixSession(Session):
    """Serves one request after another. A prefill feeds only what follows the tokens that the last one began with too.

    So a prompt's passes have other shapes than in a session of its own, and its logits the rounding of those. Hidden
    states are kept of no token: who asks for them has the whole prompt fed.
    """

    def __init__(self, decoder: Decoder, ops: Ops, runner: BlockRunner | None = None) -> None:
        super().__init__(decoder, ops, runner)
        self._prompt: list[int] = []

    def reset(self) -> None:
        """Forget what came after the last prompt; which of that is of use, the next prefill tells."""
        self.truncate(len(self._prompt))

    def truncate(self, length: int) -> None:
        super().truncate(length)
        del self._prompt[length:]

    def prefill(self, tokens: Sequence[int], hidden_layers: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        kept = 0 if hidden_layers else common_prefix(self._prompt, tokens)
        self.truncate(kept)
        hidden = super().prefill(tokens[kept:], hidden_layers)
        self._prompt = list(tokens)
        return hidden


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
