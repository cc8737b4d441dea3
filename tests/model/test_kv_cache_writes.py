"""Both ways to write a pass into the KV cache, one request after the other and all by index, write the same.

Legend: g layers, B requests, N rows, S slots, G KV heads, C capacity, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import RequestRows

CPU = torch.device("cpu")
g, S, G, C, D = 3, 4, 2, 64, 8


def requests() -> list[RequestRows]:
    """Slots out of order; the second one's rows fill its slot to the end, the third's come after rows of its tree."""
    growing = RequestRows(1, 5, 9, [1, 1], [6, 6], [2, 3], range(6), range(1, 7), [6] * 6)
    return [RequestRows.chain(3, 0, [1] * 7), RequestRows.chain(0, C - 4, [1] * 4), growing]


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("write", [PassCache.write, PassCache.write_by_request, PassCache.write_by_index])
def test_the_same_columns(
    write: Callable[[PassCache, int, torch.Tensor, torch.Tensor], None], padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding writes nothing, whatever it holds; K and V each get their own, in these layers and no others."""
    inputs = PassInputs.of("growing", requests(), CPU, rows=7 + padding)
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(2, 1 + g + 1, S, G, C, D, generator=generator)
    new = torch.randn(2, g, 3, 7 + padding, G, D, generator=generator)
    expected = before.clone()
    for b, r in enumerate(requests()):
        live = len(r.token)
        new[:, :, b, live:] = float("nan")
        for row in range(live):
            expected[:, 1 : 1 + g, r.slot, :, r.write_at + row] = new[:, :, b, row]
    stored = before.clone()
    if write == PassCache.write_by_index:
        monkeypatch.setattr(PassInputs, "parts", property(_waits))
    write(PassCache(stored[0], stored[1], inputs), 1, new[0], new[1])
    assert torch.equal(stored, expected)
    assert not torch.equal(expected, before)


def _waits(inputs: PassInputs) -> NoReturn:
    raise AssertionError("the host waits for the device")
