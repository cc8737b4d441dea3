"""Checks that the author of a plugin runs on it: each is one call, and raises AssertionError saying what is wrong.

They need no test framework, no model and no network. Statistical checks use fixed seeds, so that they give the same
answer every time, and reject a correct plugin with a probability of at most one in a million per call.
"""

from __future__ import annotations

from spec_sdk.testing.drafters import check_drafter
from spec_sdk.testing.executors import check_executor
from spec_sdk.testing.growths import check_growth
from spec_sdk.testing.predictors import check_predictor
from spec_sdk.testing.rounding import plain_logits, step_beyond_rounding
from spec_sdk.testing.runners import check_runner
from spec_sdk.testing.samplers import check_sampler
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit, joint_law, sample_tokens
from spec_sdk.testing.tables import DrawPlan, PlannedDraw, TableDrafter, TableModel
from spec_sdk.testing.trees import check_tree
from spec_sdk.testing.verifiers import CHAINS, TREES, check_verifier
from spec_sdk.testing.waiting import WouldWait, no_waiting, repeated

__all__ = [
    "CHAINS",
    "SIGNIFICANCE",
    "TREES",
    "DrawPlan",
    "PlannedDraw",
    "StaticOps",
    "TableDrafter",
    "TableModel",
    "WouldWait",
    "check_drafter",
    "check_executor",
    "check_growth",
    "check_predictor",
    "check_runner",
    "check_sampler",
    "check_tree",
    "check_verifier",
    "goodness_of_fit",
    "joint_law",
    "no_waiting",
    "plain_logits",
    "repeated",
    "sample_tokens",
    "step_beyond_rounding",
]
