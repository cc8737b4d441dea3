"""One prompt being answered, and what is decided about it in a cycle.

Legend: N tree nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts.sampler import Sampler
from spec_sdk.tree import TokenTree

LARGEST_TREE = 4096
"""Most nodes of a tree where nothing else is said."""


@dataclass(frozen=True)
class Budget:
    """How much to draft in this cycle: at most ``depth`` tokens on a path; a depth of 0 is a plain decoding step.

    ``nodes``: most nodes of the tree, the root included: the rows of the target's pass.
    """

    depth: int
    nodes: int = LARGEST_TREE


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    ``path``: accepted nodes in order, beginning with the root, node 0.
    ``next_token``: the token after the last accepted node: the bonus token, or the one resampled after a rejection.
    """

    path: list[int]
    next_token: int
    tree: TokenTree

    @property
    def tokens(self) -> list[int]:
        """The tokens to emit: the accepted drafted tokens, then ``next_token``."""
        return [self.tree.token_N[i] for i in self.path[1:]] + [self.next_token]


@dataclass
class Request:
    """One prompt being answered, as plugins see it.

    ``tokens`` is the prefix: prompt and output so far. The last is the pending token, whose KV is in no cache yet.
    ``rng`` is the only source of randomness: a CPU generator, seeded per request.
    ``target`` is the target model's own session (embedding, head, forward, cache) for drafters that draft with it.
    """

    tokens: list[int]
    prompt_length: int
    max_new_tokens: int
    sampler: Sampler
    rng: torch.Generator
    stop_ids: frozenset[int] = frozenset()
    target: Any = None
    step: int = 0

    @property
    def pending_token(self) -> int:
        return self.tokens[-1]

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_length

    def uniforms(self, count: int) -> torch.Tensor:
        """The next ``count`` random numbers of [0, 1): float64, on the CPU."""
        return torch.rand(count, generator=self.rng, dtype=torch.float64)
