"""A matrix that gets further outputs multiplies as if it had been made of all of them at once.

Legend: O outputs, I inputs, N rows.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native import huge_pages
from spec_sdk_backends.native.growing_projection import GrowingProjection
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.panels import OUTPUTS, to_panels
from spec_sdk_backends.native.products import NativeProjection

DTYPES = [torch.float32, torch.bfloat16]
# within a panel, to its end, beyond several, none
ADDED = [1, 3, OUTPUTS - 4, 1, 2 * OUTPUTS + 5, 0, 7]
# the last step is filled up, or is whole
INPUTS = [33, 48]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_added_lie_where_a_whole_matrix_has_them(dtype: torch.dtype, inputs: int) -> None:
    weight_OI = random(sum(ADDED), inputs, dtype=dtype)
    x_NI, whole, outputs = random(3, inputs, dtype=dtype), NativeProjection(weight_OI), 0
    grown = GrowingProjection(inputs, dtype)
    for added in ADDED:
        before, kept_NO = grown, grown(x_NI)
        grown = grown.with_rows(weight_OI[outputs : outputs + added])
        outputs += added
        assert (grown.outputs, grown.inputs) == (outputs, inputs)
        assert torch.equal(grown(x_NI), whole(x_NI)[:, :outputs])
        assert torch.equal(grown.weight_OI, weight_OI[:outputs])
        # a pass that was begun with it goes on
        assert torch.equal(before(x_NI), kept_NO)
    panels = -(-outputs // OUTPUTS)
    assert torch.equal(grown.panels_PSCD[:panels], to_panels(weight_OI, library()))
    assert not grown.panels_PSCD[panels:].count_nonzero()


def test_few_copies_are_made_and_none_in_the_weights_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(shape: object, dtype: torch.dtype) -> torch.Tensor:
        raise AssertionError("a request's rows keep no large page")

    monkeypatch.setattr(huge_pages, "empty", empty)
    row_I, grown, places = random(1, 48), GrowingProjection(48, torch.float32), set[int]()
    for _ in range(20 * OUTPUTS):
        grown = grown.with_rows(row_I)
        places.add(grown.panels_PSCD.data_ptr())
    # 1, 2, 4, 8, 16 and 32 panels
    assert grown.outputs == 20 * OUTPUTS and len(places) <= 6
    assert torch.equal(grown.weight_OI, row_I.expand(20 * OUTPUTS, 48))


@pytest.mark.parametrize("ops", [Ops(), CpuOps(), NativeOps(CpuOps())], ids=["reference", "packed", "native"])
@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES])
def test_every_backend_adds_rows(ops: Ops, dtype: torch.dtype) -> None:
    weight_OI, x_NI, made = random(20, 32, dtype=dtype), random(2, 32, dtype=dtype), list[Projection]()
    for first, end in ((0, 1), (1, 17), (17, 20)):
        made.append(ops.with_rows(made[-1] if made else None, weight_OI[first:end]))
        assert torch.equal(made[-1].weight_OI, weight_OI[:end]) and made[-1].bias_O is None
    for projection, outputs in zip(made, (1, 17, 20), strict=True):
        torch.testing.assert_close(projection(x_NI), (x_NI.double() @ weight_OI[:outputs].double().T).to(dtype))
