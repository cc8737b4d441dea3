"""Tokens drawn of several rows at once on the device are those that are drawn one by one.

Legend: K rows, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.ops.inversion import draw_rows, first_beyond
from spec_sdk.ops.pieces import TILE
from spec_sdk.testing import no_waiting


@pytest.mark.parametrize("vocabulary", [7, TILE, 3 * TILE + 5])
def test_each_row_has_the_token_that_it_has_alone(vocabulary: int) -> None:
    """Also of rows with tokens of no mass at both ends, and of the numbers between which a token changes."""
    rng = torch.Generator().manual_seed(vocabulary)
    p_KV = (3 * torch.randn((40, vocabulary), generator=rng)).softmax(-1)
    p_KV[::3, : vocabulary // 3] = 0.0
    p_KV[1::3, -(vocabulary // 3) :] = 0.0
    uniform_K = torch.rand(40, generator=rng, dtype=torch.float64)
    uniform_K[:4] = torch.tensor([0.0, 1 - 2**-53, 0.0, 1 - 2**-53], dtype=torch.float64)
    with no_waiting():
        token_K = draw_rows(p_KV, uniform_K)
    found = token_K.tolist()
    assert found == [first_beyond(p_V, float(u)) for p_V, u in zip(p_KV, uniform_K, strict=True)]
    assert all(p_V[token] > 0 for p_V, token in zip(p_KV, found, strict=True))
    assert len(set(found)) > min(5, vocabulary // 2)


def test_rows_without_mass_have_no_token() -> None:
    p_KV = torch.full((4, 300), 1 / 300)
    p_KV[0] = 0.0
    p_KV[1, 299] = float("nan")
    p_KV[2, 5] = float("inf")
    uniform_K = torch.full((4,), 0.999999, dtype=torch.float64)
    found = draw_rows(p_KV, uniform_K).tolist()
    assert found[:3] == [-1, -1, -1] == [first_beyond(p_V, 0.999999) for p_V in p_KV[:3]]
    assert found[3] == 299
