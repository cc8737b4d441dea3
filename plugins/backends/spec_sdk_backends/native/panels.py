"""Weights in panels of 16 outputs, step by step of their inputs, as ``source/panels.h`` reads them.

What fills up the last panel and the last step are zeros.

Legend: O outputs, I inputs, P panels, S steps, C outputs of a panel, D inputs of a step, K rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk_backends.native import huge_pages
from spec_sdk_backends.native.structures import in_a_row

OUTPUTS = 16
BYTES = 4
"""Of an output's inputs in a step."""


def to_panels(weight_xOI: torch.Tensor, kernels: Any) -> torch.Tensor:
    """[..., O, I] → [..., P, S, C, D], a copy that the library ``kernels`` makes.

    Raises TypeError for weights that are not in host memory.
    """
    whole_xOI, steps = _in_steps(weight_xOI)
    before, outputs, depth = weight_xOI.shape[:-2], weight_xOI.shape[-2], BYTES // weight_xOI.element_size()
    panels = huge_pages.empty((*before, -(-outputs // OUTPUTS), steps, OUTPUTS, depth), weight_xOI.dtype)
    threads = torch.get_num_threads()
    kernels.spec_lay_in_panels(whole_xOI.data_ptr(), math.prod(before), outputs, steps, panels.data_ptr(), threads)
    return panels


def lay_rows(weight_KI: torch.Tensor, panels_PSCD: torch.Tensor, first: int, kernels: Any) -> None:
    """Write rows to where outputs ``first`` … of a matrix lie, for which there is room."""
    whole_KI, steps = _in_steps(weight_KI)
    kernels.spec_lay_rows(whole_KI.data_ptr(), first, len(weight_KI), steps, panels_PSCD.data_ptr())


def _in_steps(weight_xOI: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rows whose last step is filled up, one behind the other; how many steps they have."""
    depth, inputs = BYTES // weight_xOI.element_size(), weight_xOI.shape[-1]
    if inputs % depth:
        weight_xOI = F.pad(weight_xOI, (0, -inputs % depth))
    return in_a_row(weight_xOI), -(-inputs // depth)


def from_panels(panels_PSCD: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """[O, I] again, a copy."""
    P, S, C, D = panels_PSCD.shape
    return panels_PSCD.transpose(1, 2).reshape(P * C, S * D)[:outputs, :inputs].contiguous()


def rows_of_panels(panels_PSCD: torch.Tensor, row_K: torch.Tensor) -> torch.Tensor:
    """Rows of the matrix, zeros that fill up the last step included: [K, S * D]."""
    return panels_PSCD[row_K // OUTPUTS, :, row_K % OUTPUTS].flatten(1)
