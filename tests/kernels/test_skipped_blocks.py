"""Blocks of keys that no query of a block may see are not read: NaN there does not show, NaN in a visible one does."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.dense_attention import TOLERANCE, ancestors, case, chain, dense_attention, ends, relative_error, star
from tests.support.pairs import every_pair

pytest.importorskip("triton")

from spec_sdk_backends.tree_attention import Tiling, tree_attention, visible_blocks_of

NODES, PREFIX, D = 256, 40, 64
TILING = Tiling.choose(NODES, D, torch.float32)


def attend(
    parents: list[int], poisoned: slice, explicit_starts: bool, splits: int, device: torch.device, listed: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's output [N, D] with NaN in K and V of tree slots ``poisoned``, and what is right without the NaN."""
    it = case(1, NODES, 1, 1, D, PREFIX + NODES, device)
    expected = dense_attention(it.q_BNHD.cpu(), it.k_BGSD.cpu(), it.v_BGSD.cpu(), ancestors(parents, PREFIX))
    for cached in (it.k_BGSD, it.v_BGSD):
        cached[:, :, PREFIX:][:, :, poisoned] = float("nan")
    end_T = torch.tensor(ends(parents), dtype=torch.int32, device=device)
    start_T = torch.arange(NODES, dtype=torch.int32, device=device) if explicit_starts else None
    visible = None
    if listed:
        starts = () if start_T is None else (start_T[None], start_T[None])
        visible = visible_blocks_of(end_T[None], NODES, TILING, 1, *starts)
    out = tree_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end_T, PREFIX, start_T, start_T, splits, visible=visible)
    return out[0, :, 0], expected[0, :, 0]


@pytest.mark.parametrize(("explicit_starts", "splits", "listed"), every_pair((False, True), (1, 3), (False, True)))
def test_slots_after_the_queries_of_a_chain(
    explicit_starts: bool, splits: int, listed: bool, device: torch.device
) -> None:
    cut = 2 * TILING.rows
    out, expected = attend(chain(NODES), slice(cut, None), explicit_starts, splits, device, listed)
    assert relative_error(out[:cut], expected[:cut]) < TOLERANCE
    assert out[cut:].isnan().all()


@pytest.mark.parametrize(("explicit_starts", "splits", "listed"), every_pair((False, True), (1, 3), (False, True)))
def test_subtrees_that_closed_before_the_queries(
    explicit_starts: bool, splits: int, listed: bool, device: torch.device
) -> None:
    """In a star a late child sees the root's block and its own; a block in between belongs to its own rows only."""
    block = slice(TILING.keys, 2 * TILING.keys)
    out, expected = attend(star(NODES), block, explicit_starts, splits, device, listed)
    touched = {row // TILING.rows for row in range(block.start, block.stop)}
    clean = torch.tensor([row // TILING.rows not in touched for row in range(NODES)])
    assert clean.sum() >= NODES // 2
    assert relative_error(out[clean.to(device)], expected[clean]) < TOLERANCE
    assert out[block].isnan().all()
