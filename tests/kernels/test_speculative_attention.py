"""Speculative flash decode against float64 attention by dense masks: prediction, exact result, norms.

Legend: B batch, N queries, H query heads, G KV heads, R = H/G, D head dim, P prefix, T tree slots, S keys.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import SpeculativeAttention
from spec_sdk.ops import Ends, Ops
from spec_sdk.ops.attention_mask import AttentionMask
from tests.kernels.dense_attention import (
    TOLERANCE,
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

pytest.importorskip("triton")

from spec_sdk_backends.speculative_attention import finish, predict_part, speculative_attention
from spec_sdk_backends.triton_ops import TritonOps


def int32(numbers: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


@pytest.mark.parametrize(("splits", "window_splits"), [(1, 1), (3, 1), (3, 2), (3, 3)])
@pytest.mark.parametrize("prefix", [0, 1, 39, 40, 41, 180, 330])
def test_prefixes_around_two_windows(prefix: int, splits: int, window_splits: int, device: torch.device) -> None:
    """One query, windows of 20 keys; the middle has 1, 140 and 290, in blocks of 64."""
    it = case(1, 1, 1, 3, 64, prefix + 1, device, seed=prefix)
    expected = expect(it, ancestors([-1], prefix), prefix, 20)
    out = speculative_attention(
        it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), prefix, 20, splits=splits, window_splits=window_splits
    )
    check(out, expected)


@pytest.mark.parametrize("size", [64, 100, 128])
def test_windows_of_whole_and_broken_blocks(size: int, device: torch.device) -> None:
    """Windows of 3 to 5 blocks, shared by as many splits; and by one, which also takes from the middle."""
    prefix = 2 * size + 321
    it = case(1, 1, 1, 1, 64, prefix + 1, device)
    expected = expect(it, ancestors([-1], prefix), prefix, size)
    for splits, window_splits in ((5, 5), (7, 4), (2, 1)):
        out = speculative_attention(
            it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), prefix, size, None, None, splits, window_splits
        )
        check(out, expected)


@pytest.mark.parametrize("size", [Ends(4, 90), Ends(0, 90), Ends(70, 1), Ends(150, 150)], ids=str)
def test_ends_of_different_sizes(size: Ends, device: torch.device) -> None:
    prefix, parents = 150, star(3)
    it = case(1, len(parents), 1, 2, 64, prefix + len(parents), device)
    expected = expect(it, ancestors(parents, prefix), prefix, size)
    tensors, end_T = (it.q_BNHD, it.k_BGSD, it.v_BGSD), int32(ends(parents), device)
    check(speculative_attention(*tensors, end_T, prefix, size, splits=2), expected)
    prediction = predict_part(*tensors, end_T, prefix, size, splits=2)
    check(finish(prediction, *tensors, prefix, size, splits=2), expected)
    mask = AttentionMask.tree(prefix, tuple(ends(parents)), device)
    check(TritonOps().speculative_attention(*tensors, mask, size), expected)


@pytest.mark.parametrize("parents", [chain(9), star(9), random_tree(40, seed=3)], ids=["chain", "star", "random"])
def test_trees_in_one_piece_and_in_two(parents: list[int], device: torch.device) -> None:
    prefix, size = 150, 32
    it = case(1, len(parents), 1, 2, 64, prefix + len(parents), device)
    expected = expect(it, ancestors(parents, prefix), prefix, size)
    tensors, end_T = (it.q_BNHD, it.k_BGSD, it.v_BGSD), int32(ends(parents), device)
    check(speculative_attention(*tensors, end_T, prefix, size, splits=2), expected)
    prediction = predict_part(*tensors, end_T, prefix, size, splits=2)
    assert relative_error(prediction.o_BNHD, expected.predicted_BNHD) < TOLERANCE
    check(finish(prediction, *tensors, prefix, size, splits=2), expected)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 96), (3, 64), (4, 128), (2, 256)])
def test_head_groups_and_head_dims(group: int, head_dim: int, device: torch.device) -> None:
    prefix, size, parents = 140, 33, random_tree(5, seed=group)
    it = case(1, len(parents), 2, group, head_dim, prefix + len(parents), device)
    expected = expect(it, ancestors(parents, prefix), prefix, size)
    out = speculative_attention(
        it.q_BNHD, it.k_BGSD, it.v_BGSD, int32(ends(parents), device), prefix, size, splits=2, window_splits=1
    )
    check(out, expected)


@pytest.mark.parametrize("pieces", [1, 2])
def test_every_sequence_has_a_prefix_of_its_own(pieces: int, device: torch.device) -> None:
    """Below, at and above twice the window; the host only knows that they fit."""
    size, parents, lengths = 30, star(4), [7, 60, 61, 200]
    it = case(len(lengths), 4, 1, 2, 64, max(lengths) + 4, device)
    tensors, end_T = (it.q_BNHD, it.k_BGSD, it.v_BGSD), int32(ends(parents), device)
    prefixes = int32(lengths, device)
    if pieces == 1:
        out = speculative_attention(*tensors, end_T, prefixes, size, splits=3)
    else:
        out = finish(predict_part(*tensors, end_T, prefixes, size), *tensors, prefixes, size, splits=3)
    for b, prefix in enumerate(lengths):
        keys, one = prefix + 4, slice(b, b + 1)
        alone = Case(it.q_BNHD[one], it.k_BGSD[one, :, :keys], it.v_BGSD[one, :, :keys])
        own = SpeculativeAttention(
            out.predicted_BNHD[one], out.exact_BNHD[one], out.difference_sq_BN[one], out.norm_sq_BN[one]
        )
        check(own, expect(alone, ancestors(parents, prefix), prefix, size))


def test_growing_tree_and_a_query_that_sees_no_slot(device: torch.device) -> None:
    """Creation order: a root, 3 children, and 9 grandchildren, who ask; then one of them sees the prefix only."""
    parents = [-1, 0, 0, 0, *(1 + i // 3 for i in range(9))]
    start = [0, 1, 5, 9, *(1 + 4 * (i // 3) + 1 + i % 3 for i in range(9))]
    end = [13, 5, 9, 13, *(1 + 4 * (i // 3) + 2 + i % 3 for i in range(9))]
    prefix, size = 100, 16
    mask = AttentionMask.growing_tree(prefix, start, end, 9, device)
    it = case(1, 9, 1, 3, 64, prefix + 13, device)
    visible_NS = ancestors(parents, prefix)[-9:]
    check(
        TritonOps().speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, size),
        expect(it, visible_NS, prefix, size),
    )
    outside_N = mask.query_start_N.clone()
    outside_N[4] = 1000
    visible_NS[4, prefix:] = False
    out = speculative_attention(
        it.q_BNHD, it.k_BGSD, it.v_BGSD, mask.key_end_T, prefix, size, mask.key_start_T, outside_N, splits=2
    )
    check(out, expect(it, visible_NS, prefix, size))


def test_a_query_that_sees_nothing_gets_zero(device: torch.device) -> None:
    it = case(1, 2, 1, 1, 64, 2, device)
    start, end, asked = int32([0, 1], device), int32([1, 2], device), int32([0, 1000], device)
    out = speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, end, 0, 8, start, asked)
    assert torch.equal(out.exact_BNHD[:, 1], torch.zeros_like(out.exact_BNHD[:, 1]))
    assert torch.equal(out.predicted_BNHD, out.exact_BNHD)
    assert out.norm_sq_BN[0, 1] == 0 and out.norm_sq_BN[0, 0] > 0
    assert not out.difference_sq_BN.any()


def test_statistics_of_the_prediction(device: torch.device) -> None:
    """m + log l is the log-sum-exp of the window's scores, so that any combine takes them."""
    prefix, size = 90, 20
    it = case(1, 1, 1, 2, 64, prefix + 1, device)
    prediction = predict_part(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), prefix, size, splits=2)
    window = [*range(size), *range(prefix - size, prefix + 1)]
    score_BNHS = it.q_BNHD.double() @ it.k_BGSD[:, 0, window].double().transpose(-1, -2)[:, None] * 64**-0.5
    lse_BNH = prediction.m_BNH + prediction.l_BNH.log()
    assert relative_error(lse_BNH, score_BNHS.logsumexp(-1)) < TOLERANCE
    middle = slice(size, prefix - size)
    rest = Ops().partial_attention(it.q_BNHD, it.k_BGSD[:, :, middle], it.v_BGSD[:, :, middle])
    exact_BNHD = Ops().combine(prediction, rest).o_BNHD
    assert relative_error(exact_BNHD, expect(it, ancestors([-1], prefix), prefix, size).exact_BNHD) < TOLERANCE


def test_a_small_difference_keeps_its_digits(device: torch.device) -> None:
    """Keys in the middle that hardly count: ‖Â − A‖ is a thousandth of ‖A‖, and still right to five digits."""
    prefix, size = 120, 20
    it = case(1, 1, 1, 1, 64, prefix + 1, device)
    it.k_BGSD[:, :, size : prefix - size] -= it.q_BNHD[:, :, :1].transpose(1, 2)
    expected = expect(it, ancestors([-1], prefix), prefix, size)
    assert 0 < float(expected.difference_sq_BN.max()) < 1e-6 * float(expected.norm_sq_BN.min())
    out = speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), prefix, size, splits=2)
    check(out, expected)


def test_many_rows_share_programs_of_the_combine_kernel(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several heads per program, with and without a rest, and all heads in one: the sums over heads are the same."""
    prefix, size, parents = 70, 10, chain(3)
    it = case(1, 3, 3, 2, 64, prefix + 3, device)
    expected = expect(it, ancestors(parents, prefix), prefix, size)
    monkeypatch.setattr("spec_sdk_backends.tree_attention.COMBINING_PROGRAMS", 1)
    for at_once in (2 * 2 * 64, 4 * 2 * 64, 1 << 20):
        monkeypatch.setattr("spec_sdk_backends.tree_attention.COMBINED_AT_ONCE", at_once)
        out = speculative_attention(
            it.q_BNHD, it.k_BGSD, it.v_BGSD, int32(ends(parents), device), prefix, size, splits=2
        )
        check(out, expected)


def test_the_reference_says_the_same(device: torch.device) -> None:
    for parents, prefix in (([-1], 150), (random_tree(6, seed=1), 150), ([-1], 12), (chain(5), 0)):
        it = case(1, len(parents), 2, 3, 64, prefix + len(parents), device)
        expected = expect(it, ancestors(parents, prefix), prefix, 16)
        masks = [AttentionMask.tree(prefix, ends(parents), device)]
        if parents == chain(len(parents)):
            masks.append(AttentionMask.chain(prefix, len(parents), device))
        for mask in masks:
            for ops in (Ops(), TritonOps()):
                check(ops.speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, 16), expected)


@pytest.mark.parametrize("prefix", [150, 20])
def test_a_prediction_is_announced_before_the_rest_is_read(
    prefix: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = random_tree(6, seed=1)
    it = case(1, len(parents), 2, 3, 64, prefix + len(parents), device)
    order: list[str] = []
    announced: list[torch.Tensor] = []

    def finishing(*arguments: Any) -> Any:
        order.append("rest")
        return finish(*arguments)

    def announce(predicted_BNHD: torch.Tensor) -> None:
        order.append("announced")
        announced.append(predicted_BNHD)

    monkeypatch.setattr("spec_sdk_backends.triton_ops.finish", finishing)
    mask = AttentionMask.tree(prefix, ends(parents), device)
    out = TritonOps().speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, mask, 16, announce)
    assert order == ["announced", "rest"] and announced[0] is out.predicted_BNHD
    check(out, expect(it, ancestors(parents, prefix), prefix, 16))


def test_a_window_that_is_off_by_one_is_caught(device: torch.device) -> None:
    """The comparison above can fail."""
    it = case(1, 1, 1, 1, 64, 101, device)
    out = speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), 100, 21)
    with pytest.raises(AssertionError):
        check(out, expect(it, ancestors([-1], 100), 100, 20))


def test_refusals(device: torch.device) -> None:
    it = case(1, 1, 1, 1, 64, 5, device)
    with pytest.raises(ValueError, match="a window of the first 0 and the last 0 keys"):
        speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), 4, 0)
    with pytest.raises(ValueError, match="do not fit into 5 keys"):
        predict_part(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), 5, 2)
    with pytest.raises(ValueError, match="65 splits: 1 to 64 can be combined"):
        speculative_attention(it.q_BNHD, it.k_BGSD, it.v_BGSD, int32([1], device), 4, 1, splits=65)
