"""A target that drafts for itself in its own cache keeps its distribution, where hardly a node is left too.

The target is a tiny decoder behind a session, since what is to be shown is that drafting leaves no trace in its cache.
One cycle is enumerated for every way in which draws and tests of acceptance can fall; several cycles are sampled.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, SamplingParams, Verifier
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.registry import Registry
from spec_sdk.testing import SIGNIFICANCE, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.statistics import cell_of
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.losslessness.test_node_budgets import SAMPLINGS, Granted
from tests.support.draft_logits import roots_of
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_models import TinyModels

VOCABULARY, TOKENS, PROMPT = 4, 3, (2, 0, 3, 2, 1, 0, 2)
DRAFTERS: Mapping[str, dict[str, Any]] = {
    "drawn chain": {"skip": [1]},
    "early exit, drawn paths": {"exit": 1, "width": 3},
    "drawn with replacement": {"skip": [1, 2], "growth": "static", "widths": [3, 1], "children": "with_replacement"},
    "drawn without replacement": {"skip": [1], "growth": "static", "widths": [3, 1], "children": "without_replacement"},
    "chosen": {"skip": [2], "growth": "static", "widths": [2, 2], "children": "top_k"},
    "dynamic": {"growth": "dynamic", "width": 2},
    "merged": {"name": "merged", "members": [{"name": "layer_skip", "width": 2}, {"name": "layer_skip", "exit": 1}]},
}


@functools.cache
def decoder() -> Decoder:
    tensors = ModelTensors("smollm", 5, vocab_size=VOCABULARY, num_hidden_layers=4, intermediate_size=16)
    return load_decoder(tensors, torch.device("cpu"), torch.float32)


class SmallTarget(Session):
    """A session that can be asked about any text, as tables can: in another session, with no drafting in its cache."""

    def __init__(self) -> None:
        super().__init__(TorchExecutor(decoder(), Ops()))
        self._plain = Session(self.executor)
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits [V] for the token after ``tokens``."""
        if tuple(tokens) not in self._known:
            self._plain.open(0, tokens, keep=False)
            self._known[tuple(tokens)] = roots_of(self._plain.feed([0], [tokens]))[0]
        return self._known[tuple(tokens)]


def drafter_of(name: str) -> Drafter:
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "layer_skip", **DRAFTERS[name]})
    drafter: Drafter = plugin(config, TinyModels(target=decoder()))
    return drafter


def always(drafter: int, nodes: int, sampling: int) -> bool:
    """Outside the full tier: every drafter with few nodes and with more, and with either sampling."""
    return nodes % 2 == 0 and (drafter + nodes // 2 + sampling) % 2 == 0


@pytest.mark.parametrize(
    ("name", "nodes", "sampling"),
    [
        pytest.param(name, nodes, sampling, marks=[pytest.mark.full] * (not always(i, nodes, j)))
        for (i, name), nodes, (j, sampling) in itertools.product(
            enumerate(DRAFTERS), (2, 3, 4, 5), enumerate(SAMPLINGS)
        )
    ],
)
def test_every_outcome_of_a_cycle(name: str, nodes: int, sampling: str) -> None:
    target: Any = SmallTarget()
    params, policy = SAMPLINGS[sampling], Granted(Budget(3, nodes))
    emitted = cycle_distribution(target, lambda: drafter_of(name), MultiStep(None), params, PROMPT, policy=policy)
    length = max(map(len, emitted))
    distribution = completed_distribution(emitted, target, params, PROMPT, length)
    expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
    assert (distribution - expected).abs().max() < 1e-5
    # a chosen token may be one that top-k rules out
    assert length > 1 or params.top_k


@pytest.mark.parametrize(
    ("name", "verifier"),
    [
        ("drawn chain", MultiStep),
        ("drawn chain", BlockVerification),
        ("drawn with replacement", MultiStep),
        ("drawn without replacement", MultiStep),
        ("merged", MultiStep),
    ],
)
def test_cycles_in_one_cache(name: str, verifier: Callable[[Any], Verifier], scale: Callable[[int, int], int]) -> None:
    """Thousands of answers in one slot, whose cache holds what earlier cycles and answers drafted."""
    target: Any = SmallTarget()
    draws, sampler = scale(120, 10_000), ReferenceSampler(None, SamplingParams(temperature=1.0))
    counts = torch.zeros(VOCABULARY**TOKENS)
    policy = Granted(Budget(3, 4))
    for tokens in sample_tokens(
        target, drafter_of(name), verifier(None), sampler, PROMPT, TOKENS, draws, policy=policy
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS)) > SIGNIFICANCE
