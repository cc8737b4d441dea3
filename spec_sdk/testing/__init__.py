"""Checks that the author of a plugin runs on it: each is one call, and raises AssertionError saying what is wrong.

They need no test framework, no checkpoint and no network. Where they can they try every outcome; statistical checks use
fixed seeds, so that they give the same answer every time, and reject a correct plugin with a probability of at most one
in a million per call. ``python -m spec_sdk task=check plugin=NAME`` runs them on an installed plugin.
"""

from __future__ import annotations

from spec_sdk.testing.attention_verifiers import check_attention_verifier
from spec_sdk.testing.backends import check_backend
from spec_sdk.testing.constraints import check_constraint
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.testing.drafters import check_drafter
from spec_sdk.testing.enumeration import cycle_distribution, difference
from spec_sdk.testing.executors import check_executor
from spec_sdk.testing.growths import check_growth
from spec_sdk.testing.plans import CHAINS, TREES
from spec_sdk.testing.policies import check_policy
from spec_sdk.testing.predictors import check_predictor
from spec_sdk.testing.rounding import plain_logits, step_beyond_rounding
from spec_sdk.testing.runners import check_runner
from spec_sdk.testing.same_bits import check_same_bits
from spec_sdk.testing.samplers import check_sampler
from spec_sdk.testing.static_ops import StaticOps
from spec_sdk.testing.statistics import SIGNIFICANCE, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.tables import DrawPlan, PlannedDraw, TableDrafter, TableModel
from spec_sdk.testing.tasks import check_task
from spec_sdk.testing.trees import check_tree
from spec_sdk.testing.undecided import NotEnumerable
from spec_sdk.testing.verifiers import check_verifier
from spec_sdk.testing.waiting import WouldWait, no_waiting, repeated

__all__ = [
    "CHAINS",
    "DrawPlan",
    "NotEnumerable",
    "PlannedDraw",
    "SIGNIFICANCE",
    "StaticOps",
    "TREES",
    "TableDrafter",
    "TableModel",
    "WouldWait",
    "check_attention_verifier",
    "check_backend",
    "check_constraint",
    "check_drafter",
    "check_executor",
    "check_growth",
    "check_policy",
    "check_predictor",
    "check_runner",
    "check_same_bits",
    "check_sampler",
    "check_task",
    "check_tree",
    "check_verifier",
    "cycle_distribution",
    "difference",
    "goodness_of_fit",
    "joint_distribution",
    "no_waiting",
    "plain_logits",
    "reference_sampler",
    "repeated",
    "request_for",
    "sample_tokens",
    "step_beyond_rounding",
]
