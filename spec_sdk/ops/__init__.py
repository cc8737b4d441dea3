"""The ground floor: kernels with their reference in plain torch, rules of acceptance, masks, linear layers.

It knows nothing above it.
"""

from __future__ import annotations

from spec_sdk.ops.acceptance import RULES, Rule
from spec_sdk.ops.attention import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.decisions import PendingDecision, ScoredTree, attempt, read_decisions
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.in_pass import DecisionsInPass, LogitsToCome, Recipe, UnscoredTree
from spec_sdk.ops.inversion import draw
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.residual import accepts, residual, without
from spec_sdk.ops.rows import Decision, FromLogits, Left, Rows, Uniforms
from spec_sdk.ops.top_tokens import TopTokens, read_tops
from spec_sdk.ops.types import (
    PLAIN,
    SPACES,
    Announce,
    AttentionSpec,
    AttentionVerdict,
    Ends,
    PartialAttention,
    Space,
    SpeculativeAttention,
    relative_error,
)

__all__ = [
    "Announce",
    "AttentionMask",
    "AttentionSpec",
    "AttentionVerdict",
    "Decision",
    "DecisionsInPass",
    "DraftLogits",
    "DrawnTree",
    "Ends",
    "FromLogits",
    "Left",
    "LogitsToCome",
    "Ops",
    "PLAIN",
    "PartialAttention",
    "PendingDecision",
    "Projection",
    "ProjectionStack",
    "Recipe",
    "RULES",
    "Rows",
    "Rule",
    "SPACES",
    "ScoredTree",
    "Space",
    "SpeculativeAttention",
    "TopTokens",
    "Uniforms",
    "UnscoredTree",
    "accepts",
    "attempt",
    "draw",
    "read_decisions",
    "read_tops",
    "relative_error",
    "residual",
    "without",
]
