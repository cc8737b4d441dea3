"""A target's weights as training begins with them: in the decoder's order, in float32, copies."""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.rotary_rows import as_rotated
from spec_sdk.model.weight_table import WeightTable


def read_weight(target: TensorSource, table: WeightTable, role: str, layer: int = 0) -> torch.Tensor:
    """One of them, a norm's gain whole. ``table``: of the target's weights. Raises KeyError for a role it lacks."""
    tensor = as_rotated(role, target.tensor(table.name(role, layer)), target.config).to(torch.float32, copy=True)
    return tensor + 1 if table.row(role).gain_minus_one else tensor
