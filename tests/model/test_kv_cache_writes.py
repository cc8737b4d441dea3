"""Both ways to write a pass into the KV cache, one request after the other and all by index, write the same.

Legend: g layers, B requests, N rows, S slots, G KV heads, C capacity, D head dim.
"""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.model.kv_cache import KVCache, write_by_index, write_by_slices
from spec_sdk.ops.pass_inputs import RequestRows

CPU = torch.device("cpu")
g, S, G, C, D = 3, 4, 2, 64, 8


def requests() -> list[RequestRows]:
    """Slots out of order; the second one's rows fill its slot to the end, the third's come after rows of its tree."""
    growing = RequestRows(1, 5, 9, [1, 1], [6, 6], [2, 3], range(6), range(1, 7))
    return [RequestRows.chain(3, 0, [1] * 7), RequestRows.chain(0, C - 4, [1] * 4), growing]


@pytest.mark.parametrize("padding", [0, 5])
def test_the_same_columns(padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding writes nothing, whatever it holds; by index, no value of a tensor is asked for."""
    inputs = PassInputs.of("growing", requests(), CPU, rows=7 + padding)
    generator = torch.Generator().manual_seed(0)
    before_gSGCD = torch.randn(g, S, G, C, D, generator=generator)
    new_gBNGD = torch.randn(g, 3, 7 + padding, G, D, generator=generator)
    for b, r in enumerate(requests()):
        new_gBNGD[:, b, len(r.token) :] = float("nan")
    by_slices, by_index, expected = before_gSGCD.clone(), before_gSGCD.clone(), before_gSGCD.clone()
    for b, r in enumerate(requests()):
        for row in range(len(r.token)):
            expected[:, r.slot, :, r.write_at + row] = new_gBNGD[:, b, row]
    write_by_slices(by_slices, inputs, new_gBNGD)
    assert torch.equal(by_slices, expected)

    fresh = PassInputs.of("growing", requests(), CPU, rows=7 + padding)
    monkeypatch.setattr(PassInputs, "parts", property(_waits))
    write_by_index(by_index, fresh, new_gBNGD)
    assert torch.equal(by_index, expected)
    assert not torch.equal(expected, before_gSGCD)


def _waits(inputs: PassInputs) -> NoReturn:
    raise AssertionError("the host waits for the device")


@pytest.mark.parametrize("by_index", [False, True])
def test_a_group_of_layers_of_a_larger_cache(by_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V each get their own, in these layers and no others."""
    if by_index:
        monkeypatch.setattr("spec_sdk.model.kv_cache.write_by_slices", write_by_index)
    cache = KVCache(5, G, D, CPU, torch.float32)
    cache.reserve(S, C)
    inputs = PassInputs.of("growing", requests(), CPU)
    k_gBNGD, v_gBNGD = torch.randn(2, g, 3, 7, G, D)
    cache.write_layers(1, inputs, k_gBNGD, v_gBNGD)
    for storage, new_gBNGD in ((cache.k_LSGCD, k_gBNGD), (cache.v_LSGCD, v_gBNGD)):
        expected = torch.zeros(g, S, G, C, D)
        write_by_slices(expected, inputs, new_gBNGD)
        assert torch.equal(storage[1:4], expected)
        assert not storage[[0, 4]].any()
