"""Attention predicted from both ends, by the native kernels, against float64 by dense masks; what is left to torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import SpeculativeAttention
from spec_sdk.ops import Ends, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs, RequestRows
from spec_sdk.ops.rounded_pass_cache import RoundedPassCache
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native import ops, speculative
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.speculative import speculative_attention
from tests.kernels.dense_attention import (
    Case,
    ancestors,
    case,
    chain,
    ends,
    random_tree,
    relative_error,
    star,
)
from tests.kernels.expected_speculation import check, expect
from tests.support.threads import threads

CPU = torch.device("cpu")
HALF = 0.01
"""Largest relative error in bfloat16."""


def attended(it: Case, mask: AttentionMask, size: int | Ends) -> SpeculativeAttention:
    """By the kernels, which announce the prediction once."""
    announced: list[torch.Tensor] = []
    found = speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, Ends.of(size), announced.append)
    assert found is not None
    assert len(announced) == 1 and announced[0] is found.predicted_BNHD
    return found


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("prefix", [41, 129, 180, 600])
def test_a_token(prefix: int, number: int) -> None:
    """Ends of 20 keys: between them are 1, 89, 140 and 560, in spans of 128."""
    it = case(1, 1, 2, 3, 64, prefix + 1, CPU, seed=prefix)
    with threads(number):
        check(attended(it, AttentionMask.chain(prefix, 1, CPU), 20), expect(it, ancestors([-1], prefix), prefix, 20))


@pytest.mark.parametrize("size", [Ends(4, 90), Ends(0, 90), Ends(70, 1), Ends(130, 19)], ids=str)
@pytest.mark.parametrize(
    "parents", [chain(9), star(9), random_tree(40, seed=3), random_tree(64, seed=4)], ids=["chain", "star", "40", "64"]
)
def test_trees_and_ends_of_different_sizes(parents: list[int], size: Ends) -> None:
    prefix = 150
    it = case(1, len(parents), 2, 2, 32, prefix + len(parents), CPU)
    mask = AttentionMask.tree(prefix, tuple(ends(parents)), CPU)
    found = attended(it, mask, size)
    check(found, expect(it, ancestors(parents, prefix), prefix, size))
    with threads(1):
        alone = attended(it, mask, size)
    assert all(torch.equal(getattr(found, name), getattr(alone, name)) for name in ("exact_BNHD", "norm_sq_BN"))


@pytest.mark.parametrize(("group", "head_dim"), [(1, 96), (3, 64), (4, 128), (2, 256), (1, 16)])
def test_head_groups_and_head_dims(group: int, head_dim: int) -> None:
    prefix, size, parents = 140, 33, random_tree(5, seed=group)
    it = case(1, len(parents), 2, group, head_dim, prefix + len(parents), CPU)
    mask = AttentionMask.tree(prefix, tuple(ends(parents)), CPU)
    check(attended(it, mask, size), expect(it, ancestors(parents, prefix), prefix, size))


def test_a_growing_tree_and_padding() -> None:
    """Of six slots in creation order the last four are queries, of which three are no padding."""
    prefix, size = 100, 16
    parents = [-1, 0, 0, 1, 2, 2]
    start, end = [0, 1, 3, 2, 4, 5], [6, 3, 6, 3, 5, 6]
    it = case(1, 4, 1, 2, 64, prefix + 6, CPU)
    mask = AttentionMask.growing_tree(prefix, start, end, 4, CPU)
    expected = expect(it, ancestors(parents, prefix)[2:], prefix, size)
    check(attended(it, mask, size), expected)
    padded = attended(it, replace(mask, live=3), size)
    assert relative_error(padded.exact_BNHD[:, :3], expected.exact_BNHD[:, :3]) < 1e-5
    fields = (padded.predicted_BNHD, padded.exact_BNHD, padded.difference_sq_BN, padded.norm_sq_BN)
    assert not any(bool(field[:, 3:].any()) for field in fields)


@pytest.mark.parametrize("rows", [torch.float32, torch.bfloat16], ids=str)
def test_keys_in_bfloat16(rows: torch.dtype) -> None:
    prefix, parents = 300, star(4)
    it = case(1, 4, 2, 2, 64, prefix + 4, CPU)
    rounded = Case(it.q_BNHD.to(rows), it.k_BGSD.bfloat16(), it.v_BGSD.bfloat16())
    mask = AttentionMask.tree(prefix, tuple(ends(parents)), CPU)
    widened = Case(*(x.float() for x in (rounded.q_BNHD, rounded.k_BGSD, rounded.v_BGSD)))
    found = attended(rounded, mask, 32)
    assert found.exact_BNHD.dtype == rows
    check(found, expect(widened, ancestors(parents, prefix), prefix, 32), HALF)


def test_what_is_close_to_exact_keeps_its_digits() -> None:
    """Where the keys between the ends hardly count, what they change is not lost in a difference of large numbers."""
    prefix, size = 200, 20
    it = case(1, 1, 1, 1, 64, prefix + 1, CPU)
    query_D = it.q_BNHD[0, 0, 0]
    it.k_BGSD[:, :, size : prefix - size] -= 14 * query_D / query_D.norm()
    expected = expect(it, ancestors([-1], prefix), prefix, size)
    assert 0 < float((expected.difference_sq_BN / expected.norm_sq_BN).sqrt()) < 1e-4
    check(attended(it, AttentionMask.chain(prefix, 1, CPU), size), expected, 1e-4)


def test_scores_that_are_no_numbers_are_seen() -> None:
    prefix = 100
    for where in (5, 50):
        it = case(1, 1, 1, 1, 64, prefix + 1, CPU)
        it.k_BGSD[0, 0, where] = float("nan")
        assert attended(it, AttentionMask.chain(prefix, 1, CPU), 20).exact_BNHD.isnan().all()


def test_what_the_kernels_leave_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def counted(*arguments: Any) -> SpeculativeAttention | None:
        found = speculative.speculative_attention(*arguments)
        calls.append(found is not None)
        return found

    monkeypatch.setattr(ops, "speculative_attention", counted)
    native = NativeOps(CpuOps())

    def same(it: Case, mask: AttentionMask, size: int) -> None:
        announced: list[torch.Tensor] = []
        found = native.speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, size, announced.append)
        expected = Ops().speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, size)
        assert relative_error(found.exact_BNHD, expected.exact_BNHD.double()) < 1e-5
        assert relative_error(announced[-1], expected.predicted_BNHD.double()) < 1e-5

    one = AttentionMask.chain(100, 1, CPU)
    same(case(1, 1, 1, 2, 64, 101, CPU), one, 20)
    assert calls == [True]
    same(case(1, 1, 1, 2, 64, 101, CPU), one, 50)
    same(case(2, 1, 1, 2, 64, 101, CPU), one, 20)
    same(case(1, 1, 1, 2, 24, 101, CPU), one, 20)
    same(case(1, 65, 1, 1, 64, 165, CPU), AttentionMask.chain(100, 65, CPU), 20)
    same(case(1, 1, 1, 2, 64, 101, CPU), replace(one, window=200), 20)
    assert not any(calls[1:]) and len(calls) == 6


@pytest.mark.parametrize("prefix", [30, 200])
def test_a_cache_in_bfloat16_is_read_where_it_lies(prefix: int) -> None:
    """Beside rows in float32; also where the kernels leave it to torch, here of keys with nothing between the ends."""
    it, mask = case(1, 1, 2, 3, 64, prefix + 1, CPU), AttentionMask.chain(prefix, 1, CPU)
    native = NativeOps(CpuOps())
    inputs = PassInputs.of("chain", [RequestRows.chain(0, prefix, [0])], CPU)
    # [L, slots, G, capacity, D]
    k_LSGCD, v_LSGCD = (x_BGSD[None].bfloat16().contiguous() for x_BGSD in (it.k_BGSD, it.v_BGSD))
    cache = RoundedPassCache(k_LSGCD, v_LSGCD, inputs, torch.float32)
    k_BGSD, v_BGSD = native.keys_to_read(cache, 0, 0)
    assert k_BGSD.dtype == torch.bfloat16 and k_BGSD.data_ptr() == k_LSGCD.data_ptr()
    found = native.speculative_attention(it.q_BNHD, k_BGSD, v_BGSD, mask, 20)
    expected = Ops().speculative_attention(it.q_BNHD, *cache.keys_values(0, 0, 1), mask, 20)
    # the kernel rounds the rows that it multiplies with such keys
    assert relative_error(found.predicted_BNHD, expected.predicted_BNHD) < HALF
    assert relative_error(found.exact_BNHD, expected.exact_BNHD) < HALF
    exact = PassCache(it.k_BGSD[None], it.v_BGSD[None], inputs)
    assert native.keys_to_read(exact, 0, 0)[0].data_ptr() == it.k_BGSD.data_ptr()
