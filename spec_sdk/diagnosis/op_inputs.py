"""What the inputs of all operations' self-tests are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from spec_sdk.ops import Ops

TREE_ENDS = (9, 6, 3, 4, 6, 6, 9, 9, 9)
"""A closed tree of nine nodes in pre-order: of each node, the end of its subtree."""
TREE_DEPTHS = (0, 1, 2, 2, 2, 3, 1, 2, 3)


@dataclass
class Inputs:
    """Standard normal numbers that do not depend on ``device``: such as ``stored`` can hold, to compute with in
    ``computed``.
    """

    device: torch.device
    stored: torch.dtype
    computed: torch.dtype
    _random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))

    def numbers(self, *shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, generator=self._random)
        return drawn.to(self.stored).to(self.computed).to(self.device)

    def gain(self, size: int) -> torch.Tensor:
        """Near 1, as the gains of norms are."""
        return (1 + 0.2 * self.numbers(size)).to(self.stored).to(self.computed)


Computes = Callable[[Ops, Inputs], Sequence[torch.Tensor]]
