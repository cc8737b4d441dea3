"""Each row's token under greedy sampling by kernels: the one that the reference finds.

Legend: B requests, N rows of a request, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from spec_sdk.contracts import SamplingParams
from spec_sdk.ops import LogitsToCome, Recipe, UnscoredTree
from spec_sdk.ops.in_pass import choices
from spec_sdk.tree import TokenTree
from spec_sdk_backends.greedy_choice import PART, greedy_choices
from spec_sdk_backends.triton_ops import TritonOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 5, PART, PART + 1, 3 * PART - 7])
@pytest.mark.parametrize(("requests", "rows"), [(1, 1), (2, 3)])
def test_the_choices(requests: int, rows: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> None:
    """In 16 bits several of a row's logits are the largest."""
    numbers = torch.Generator().manual_seed(vocabulary)
    logits_BNV = torch.randn((requests, rows, vocabulary), generator=numbers).to(device, dtype)
    found = greedy_choices(logits_BNV)
    assert found.dtype == torch.int64 and torch.equal(found, choices(logits_BNV))


def test_ties_go_to_the_lowest_token_of_all_parts(device: torch.device) -> None:
    logits_BNV = torch.zeros((1, 3, 2 * PART + 5), device=device)
    logits_BNV[0, 1, 7:] = 2.0
    logits_BNV[0, 2, [PART + 3, 2 * PART + 1]] = 1.0
    assert greedy_choices(logits_BNV).tolist() == [[0, 7, PART + 3]]


@pytest.mark.parametrize("place", [0, PART + 2])
def test_unusable_rows_have_none(place: int, device: torch.device) -> None:
    logits_BNV = torch.randn((1, 5, PART + 9), generator=torch.Generator().manual_seed(0)).to(device)
    logits_BNV[0, 0, place] = float("nan")
    logits_BNV[0, 1, place] = float("inf")
    logits_BNV[0, 2] = float("-inf")
    logits_BNV[0, 3, place] = float("-inf")
    found = greedy_choices(logits_BNV)
    assert found[0, :3].tolist() == [-1, -1, -1] and torch.equal(found, choices(logits_BNV))
    assert min(found[0, 3:].tolist()) >= 0


def test_rows_apart_in_memory_and_other_dtypes(device: torch.device) -> None:
    logits_BNV = torch.randn((2, 8, 50), generator=torch.Generator().manual_seed(1)).to(device)
    assert torch.equal(greedy_choices(logits_BNV[:, ::2]), choices(logits_BNV[:, ::2]))
    assert torch.equal(greedy_choices(logits_BNV.double()), choices(logits_BNV))


def test_a_greedy_pass_makes_its_choices_by_them(device: torch.device) -> None:
    """The same function for every pass, so that they share a graph."""
    logits = LogitsToCome(1, 1, 9, torch.float32, device)
    unscored = [UnscoredTree(TokenTree.root_only(3), Recipe(SamplingParams()), lambda count: [0.0] * count)]
    made = [TritonOps().accept_in_pass("greedy", unscored, logits) for _ in range(2)]
    assert all(one is not None and one.epilogue is greedy_choices for one in made)
    assert TritonOps().accept_in_pass("another", unscored, logits) is None
