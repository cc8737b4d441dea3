"""What a plugin is: one small class per kind. Everything else (models, caches, trees, metrics) is given to it.

A plugin class sets ``name`` (what YAML and the command line call it) and ``Config``, a dataclass of its options, each
declared with :func:`option`. YAML and overrides are merged onto that dataclass, so an unknown option, a wrong type or a
value out of range is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from spec_sdk.bench.cost_curve import CostCurve, PassCosts
from spec_sdk.config.option import option
from spec_sdk.contracts.attention_verifier import AttentionVerifier
from spec_sdk.contracts.backend import Backend, Suitability
from spec_sdk.contracts.constraint import AnyTokens, Constraint, Matcher, OnlyTokens, SuppressedTokens
from spec_sdk.contracts.diagnosis import Finding, SelfTest
from spec_sdk.contracts.drafter import Drafter, Hidden, TreesTold
from spec_sdk.contracts.growth import Growing, Growth
from spec_sdk.contracts.policy import CostSource, Policy
from spec_sdk.contracts.predictor import Predictor
from spec_sdk.contracts.request import LARGEST_TREE, Budget, Request, RequestState, Verdict
from spec_sdk.contracts.sampler import Sampler
from spec_sdk.contracts.task import Task
from spec_sdk.contracts.verifier import Verifier
from spec_sdk.errors import RequestError
from spec_sdk.guarantees import GUARANTEES, Guarantee, weakest
from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from spec_sdk.model.draft_levels import TreeShape
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.ops.draft_logits import DraftLogits
from spec_sdk.ops.grown_paths import (
    ClosedTrees,
    GrownLevel,
    GrownPaths,
    OutputRows,
    PathDraws,
    ProbablePaths,
    RowsToCommit,
    ToppedLogits,
    TreeClosing,
)
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.top_tokens import TopTokens
from spec_sdk.ops.types import (
    SPACES,
    Announce,
    AttentionVerdict,
    PartialAttention,
    Space,
    SpeculativeAttention,
    relative_error,
)
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk.plugin import NoOptions, Plugin, Random
from spec_sdk.sampling_params import SamplingParams

__all__ = [
    "Announce",
    "AnyTokens",
    "AttentionReport",
    "AttentionVerdict",
    "AttentionVerifier",
    "Backend",
    "BlockRunner",
    "Budget",
    "Cache",
    "ClosedTrees",
    "Constraint",
    "CostCurve",
    "CostSource",
    "DraftLogits",
    "Drafter",
    "Executor",
    "Finding",
    "GUARANTEES",
    "Growing",
    "GrownLevel",
    "GrownPaths",
    "Growth",
    "Guarantee",
    "Hidden",
    "LARGEST_TREE",
    "Matcher",
    "NoOptions",
    "OnlyTokens",
    "OutputRows",
    "PLUGIN_KINDS",
    "PartialAttention",
    "PassCosts",
    "PassInputs",
    "PassOutput",
    "PassPlan",
    "PathDraws",
    "Plugin",
    "Policy",
    "Predictor",
    "ProbablePaths",
    "Random",
    "Request",
    "RequestError",
    "RequestState",
    "RowsToCommit",
    "SPACES",
    "Sampler",
    "SamplingParams",
    "SelfTest",
    "SomeLogits",
    "Space",
    "SpeculativeAttention",
    "Suitability",
    "SuppressedTokens",
    "Task",
    "TopTokens",
    "ToppedLogits",
    "TreeClosing",
    "TreeShape",
    "TreesTold",
    "Verdict",
    "Verifier",
    "option",
    "relative_error",
    "weakest",
]

PLUGIN_KINDS: Mapping[str, type[Plugin]] = {
    base.kind: base
    for base in (
        Drafter,
        Verifier,
        Sampler,
        Constraint,
        Predictor,
        AttentionVerifier,
        Growth,
        BlockRunner,
        Policy,
        Backend,
        Task,
    )
}
