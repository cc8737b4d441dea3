"""What a plugin is: one small class per kind. Everything else (models, caches, trees, metrics) is given to it.

A plugin class sets ``name`` (what YAML and the command line call it) and ``Config`` (a dataclass of its options, with
defaults). Its YAML is merged onto that dataclass, so an unknown option or a wrong type is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from spec_sdk.contracts.attention_verifier import SPACES, AttentionVerdict, AttentionVerifier, Space, relative_error
from spec_sdk.contracts.backend import Backend
from spec_sdk.contracts.drafter import Drafter
from spec_sdk.contracts.plugin import GUARANTEES, Guarantee, NoOptions, Plugin, Random, weakest
from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.predictor import Announce, PartialAttention, Predictor, SpeculativeAttention
from spec_sdk.contracts.request import LARGEST_TREE, Budget, Request, SamplingParams, Verdict
from spec_sdk.contracts.sampler import Sampler
from spec_sdk.contracts.task import Task
from spec_sdk.contracts.verifier import Verifier

__all__ = [
    "Announce",
    "AttentionVerdict",
    "AttentionVerifier",
    "Backend",
    "Budget",
    "Drafter",
    "GUARANTEES",
    "Guarantee",
    "LARGEST_TREE",
    "NoOptions",
    "PLUGIN_KINDS",
    "PartialAttention",
    "Plugin",
    "Policy",
    "Predictor",
    "Random",
    "Request",
    "SPACES",
    "Sampler",
    "SamplingParams",
    "Space",
    "SpeculativeAttention",
    "Task",
    "Verdict",
    "Verifier",
    "relative_error",
    "weakest",
]

PLUGIN_KINDS: Mapping[str, type[Plugin]] = {
    base.kind: base for base in (Drafter, Verifier, Sampler, Predictor, AttentionVerifier, Policy, Backend, Task)
}
