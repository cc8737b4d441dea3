"""Random growing trees, and the naive answer to who is whose ancestor."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from spec_sdk.tree import DrawKind, TreeBuilder

VOCABULARY = 4


@st.composite
def builders(draw: Any, max_adds: int = 40) -> TreeBuilder:
    """Trees of any shape, from a chain to a star; of few tokens, so that many draws meet in one child."""
    builder = TreeBuilder(draw(st.integers(0, VOCABULARY - 1)))
    q_V = torch.full((VOCABULARY,), 1 / VOCABULARY)
    reach = draw(st.sampled_from([1, 3, 1000]))
    for _ in range(draw(st.integers(0, max_adds))):
        # a reach of 1 always extends the youngest node; a large one picks any
        parent = draw(st.integers(max(0, builder.size - reach), builder.size - 1))
        kind: DrawKind = draw(st.sampled_from(["chosen", "with_replacement"]))
        builder.add(parent, draw(st.integers(0, VOCABULARY - 1)), kind, None if kind == "chosen" else q_V, "test")
    return builder


def ancestors_or_self(parents: list[int]) -> list[list[bool]]:
    """``matrix[i][j]``: i is j or an ancestor of j. Found by walking up from every j."""
    matrix = [[False] * len(parents) for _ in parents]
    for j in range(len(parents)):
        i = j
        while i != -1:
            matrix[i][j] = True
            i = parents[i]
    return matrix
