"""The benchmark of verification on trees measures trees that are what they say."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sampling import SAMPLED
from benchmarks.tree_verdicts import KINDS, TreeStep, aims, measure, rows
from spec_sdk.tree import DrawKind
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_case_is_drawn_as_it_says(kind: DrawKind) -> None:
    case = measure(kind, 500, torch.float32, CPU, SAMPLED, seconds=0.02)
    assert tuple(case["rivals"]) == ("reference", "exact", "sigmoid", "by nodes") and rows(case)[0][0] == "1.00"
    assert case["steps_in_which_exact_and_reference_differ"] == 0
    judged = aims({"cases": [case], "device": "cpu"})
    assert [aim["aim"].split()[-1] for aim in judged] == ["reference", "sigmoid", "nodes"]
    assert all(aim["result"] in ("met", "missed") for aim in judged)
    step = TreeStep(kind, 500, torch.float32, CPU, SAMPLED, 0)
    assert len(step.drawn) >= 4 + 4 + 4 and step.target.shape[0] > 12


def test_every_sampler_starts_from_what_its_own_drawing_leaves() -> None:
    """The reference has made its distributions; fused samplers know drawn tokens, or, in torch, make what they draw
    different ones from.
    """
    samplers = ReferenceSampler(None, SAMPLED), ExactSampler(None, SAMPLED), ExactSampler(ExactConfig("torch"), SAMPLED)
    for kind in KINDS[1:]:
        step = TreeStep(kind, 500, torch.float32, CPU, SAMPLED, 0)
        for sampler in samplers:
            for node, distribution in step.distributions(sampler).items():
                if isinstance(sampler, ExactSampler) and (kind == "with_replacement" or sampler.ops is None):
                    assert distribution.made is None and isinstance(distribution.known, dict)
                    assert {(node, token) for token in distribution.known} <= set(step.drawn)
                else:
                    assert distribution.made is not None
