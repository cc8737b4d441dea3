"""The ground floor: kernels with their reference in plain torch, masks and linear layers. It knows nothing above it."""

from __future__ import annotations

from spec_sdk.ops.attention import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.types import (
    SPACES,
    Announce,
    AttentionVerdict,
    PartialAttention,
    Space,
    SpeculativeAttention,
    relative_error,
)

__all__ = [
    "Announce",
    "AttentionMask",
    "AttentionVerdict",
    "Ops",
    "PartialAttention",
    "Projection",
    "ProjectionStack",
    "SPACES",
    "Space",
    "SpeculativeAttention",
    "relative_error",
]
