"""Who sees whom in a batch, read off the tensors that kernels read: live rows their own, padding nothing of a tree.

Legend: B requests, N rows, T tree slots.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spec_sdk.ops.pass_inputs import PassInputs, PassKind, RequestRows
from spec_sdk.tree import TreeBuilder

CPU = torch.device("cpu")


def builder(parents: list[int]) -> TreeBuilder:
    tree = TreeBuilder(1)
    for node, parent in enumerate(parents):
        tree.add(parent, 2 + node, "chosen")
    return tree


def closed(slot: int, prefix: int, parents: list[int]) -> RequestRows:
    tree = builder(parents).build().tree
    return RequestRows.tree(slot, prefix, tree.token_N, tree.depth_N, tree.end_N)


def growing(slot: int, prefix: int, parents: list[int], new: int) -> RequestRows:
    """The ``new`` youngest nodes of a tree whose root is committed."""
    tree = builder(parents)
    start, end = tree.intervals()
    at, position = prefix + tree.size - 1 - new, [prefix - 1 + depth for depth in tree.depth[1:]]
    return RequestRows(slot, prefix, at, tree.token[-new:], position[-new:], start[-new:], start[1:], end[1:], position)


BATCHES: dict[PassKind, list[RequestRows]] = {
    "chain": [RequestRows.chain(2, 0, [5, 6, 7]), RequestRows.chain(0, 4, [8])],
    "tree": [closed(1, 3, [0, 0, 1]), closed(3, 0, [0, 1, 1, 0, 4, 4]), closed(0, 9, [])],
    "growing": [growing(2, 5, [0, 0, 1, 2, 3], 2), growing(0, 1, [0, 0, 0], 3)],
}


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("kind", BATCHES)
def test_rows_see_their_own_requests_slots_and_padding_sees_none(kind: PassKind, padding: int) -> None:
    requests = BATCHES[kind]
    N, T = max(len(r.token) for r in requests) + padding, max(len(r.key_end) for r in requests) + padding
    inputs = PassInputs.of(kind, requests, CPU, N, T)
    assert (inputs.batch, inputs.width, inputs.key_end_BT.shape[1]) == (len(requests), N, T)
    row_BN1 = inputs.query_start_BN[:, :, None]
    visible_BNT = (inputs.key_start_BT[:, None] <= row_BN1) & (row_BN1 < inputs.key_end_BT[:, None])
    for b, (r, part) in enumerate(zip(requests, inputs.parts, strict=True)):
        live, slots = len(r.token), len(r.key_end)
        alone = PassInputs.of(kind, [r], CPU)
        assert torch.equal(part.mask.visible_NT(), alone.parts[0].mask.visible_NT())
        assert torch.equal(visible_BNT[b, :live, :slots], alone.parts[0].mask.visible_NT())
        assert visible_BNT[b].sum() == visible_BNT[b, :live, :slots].sum()
        assert (part.index, part.slot, part.write_at, part.live, part.slots) == (b, r.slot, r.write_at, live, slots)
        assert (part.mask.prefix, part.mask.keys) == (r.prefix, r.prefix + slots)
        for name in ("token_BN", "position_BN", "slot_B", "prefix_B", "write_at_B", "live_B", "key_end_BT"):
            assert torch.equal(getattr(inputs.request(b), name), getattr(alone, name)), name


def test_a_copy_with_other_integers_is_not_taken_for_the_old_ones() -> None:
    """A kernel reads the one tensor, where there is one."""
    inputs = PassInputs.of("chain", [RequestRows.chain(0, 4, [1, 2, 3])], CPU)
    assert inputs.flat is not None and inputs.key_end_BT.data_ptr() > inputs.flat.data_ptr()
    assert replace(inputs, key_end_BT=inputs.key_end_BT - 1).flat is None
