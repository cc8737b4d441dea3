"""How much to speculate next: the first-party policies."""

from __future__ import annotations

from spec_sdk.policy.adaptive import AdaptiveConfig, AdaptivePolicy
from spec_sdk.policy.break_even import BreakEvenConfig, BreakEvenPolicy
from spec_sdk.policy.fixed import FixedConfig, FixedPolicy
from spec_sdk.policy.heuristic import HeuristicConfig, HeuristicPolicy

__all__ = [
    "AdaptiveConfig",
    "AdaptivePolicy",
    "BreakEvenConfig",
    "BreakEvenPolicy",
    "FixedConfig",
    "FixedPolicy",
    "HeuristicConfig",
    "HeuristicPolicy",
]
