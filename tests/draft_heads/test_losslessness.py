"""With every lossless verifier the answers keep the target's distribution, also where hardly a node is left.

The target is a table, whose hidden state is its row of logits; the head reads it. One cycle is enumerated for every way
in which draws and tests of acceptance can fall; several cycles of one drafter are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Growth, Policy, Request, SamplingParams, Verifier
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops.reduced_vocabulary import ReducedVocabularyHead
from spec_sdk.testing import SIGNIFICANCE, TableModel, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.statistics import cell_of
from spec_sdk_drafters.eagle import EagleConfig, EagleDrafter
from spec_sdk_growth.auto import AutoConfig, AutoGrowth
from spec_sdk_growth.beam import BeamConfig, BeamGrowth
from spec_sdk_growth.dynamic import DynamicConfig, DynamicGrowth
from spec_sdk_growth.static import StaticConfig, StaticGrowth
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep
from spec_sdk_verifiers.naive_tree import NaiveTree
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_heads import HeadSizes, random_ends, write_eagle1, write_eagle3
from tests.support.tiny_models import TinyModels

VOCABULARY, TOKENS, PROMPT = 4, 3, (2, 0, 3, 2, 1, 0, 2)
HEADS = {
    "eagle3": HeadSizes(V=4, W=3, M=16, S=4, heads=2, kv_heads=1, head_dim=8, mlp=16),
    "eagle": HeadSizes(V=4, W=4, M=4, S=4, heads=2, kv_heads=1, head_dim=4, mlp=16),
}
SAMPLINGS = {
    "temperature 1": SamplingParams(temperature=1.0),
    "top-k": SamplingParams(temperature=1.5, top_k=2),
}


class TableModels(TinyModels):
    """Beside a table: its decoder only says how large the vocabulary is."""

    def __init__(self, ends: TargetEnds) -> None:
        source = ModelTensors("smollm", 5, vocab_size=VOCABULARY, num_hidden_layers=1)
        decoder = load_decoder(source, torch.device("cpu"), torch.float32)
        super().__init__(decoder, decoder)
        self._ends = ends


def static(children: str, *widths: int) -> Growth:
    return StaticGrowth(StaticConfig(list(widths), children))


CHAINS: dict[str, Callable[[], Growth]] = {
    "drawn chain": lambda: AutoGrowth(AutoConfig()),
    "chosen chain": lambda: BeamGrowth(BeamConfig(children="top_k")),
}
TREES: dict[str, Callable[[], Growth]] = {
    "drawn paths": lambda: AutoGrowth(AutoConfig(width=3)),
    "drawn with replacement": lambda: static("with_replacement", 3, 1),
    "drawn without replacement": lambda: static("without_replacement", 3, 1),
    "chosen": lambda: static("top_k", 2, 2),
    "dynamic": lambda: DynamicGrowth(DynamicConfig(width=2)),
    # more than the head has tokens
    "wide": lambda: BeamGrowth(BeamConfig(width=4)),
}
VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (MultiStep(None), NaiveTree(None), BlockVerification(None), ChainRejection(None))
}
CASES = [
    *((growth, "multi_step") for growth in [*CHAINS, *TREES]),
    *((growth, verifier) for growth in CHAINS for verifier in ("block_verification", "chain_rejection")),
    *((growth, "naive_tree") for growth in ("drawn paths", "chosen")),
]


class Granted(Policy):
    """Always the same budget."""

    name = "granted"

    def budget(self, request: Request) -> Budget:
        budget: Budget = self.config
        return budget


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Drafter]:
    """A drafter with one of the heads and one of the growths."""
    directory = tmp_path_factory.mktemp("heads")
    write_eagle3(directory / "eagle3", HEADS["eagle3"], seed=1, eagle_aux_hidden_state_layer_ids=[0, 2, 3])
    write_eagle1(directory / "eagle", HEADS["eagle"], seed=1)
    models = {name: TableModels(random_ends(sizes, 3, dtype=torch.float32)) for name, sizes in HEADS.items()}

    def drafter(head: str, growth: str) -> Drafter:
        chosen: Any = {**CHAINS, **TREES}[growth]()
        return EagleDrafter(EagleConfig(str(directory / head), growth=chosen), models[head])

    return drafter


def test_the_head_does_not_know_all_tokens(make: Callable[[str, str], Drafter]) -> None:
    """So that one outside its vocabulary is drawn by the target alone."""
    drafter = make("eagle3", "drawn chain")
    assert isinstance(drafter, EagleDrafter) and isinstance(drafter.head.output_head, ReducedVocabularyHead)
    assert len(drafter.head.output_head.token_R) == 3


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("growth", "verifier"), CASES)
def test_every_outcome_of_a_cycle(
    growth: str, verifier: str, head: str, nodes: int, sampling: str, make: Callable[[str, str], Drafter]
) -> None:
    target, params, policy = TableModel(VOCABULARY, 0), SAMPLINGS[sampling], Granted(Budget(2, nodes))
    emitted = cycle_distribution(target, lambda: make(head, growth), VERIFIERS[verifier], params, PROMPT, policy=policy)
    length = max(map(len, emitted))
    distribution = completed_distribution(emitted, target, params, PROMPT, length)
    expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
    assert (distribution - expected).abs().max() < 1e-6


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("growth", ["drawn with replacement", "drawn without replacement", "dynamic"])
def test_cycles_of_one_drafter(
    growth: str, head: str, make: Callable[[str, str], Drafter], scale: Callable[[int, int], int]
) -> None:
    """Its cache holds pairs of earlier cycles."""
    target, draws = TableModel(VOCABULARY, 0), scale(200, 10_000)
    sampler = ReferenceSampler(None, SAMPLINGS["temperature 1"])
    counts = torch.zeros(VOCABULARY**TOKENS)
    policy = Granted(Budget(3, 4))
    for tokens in sample_tokens(
        target, make(head, growth), MultiStep(None), sampler, PROMPT, TOKENS, draws, policy=policy
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS)) > SIGNIFICANCE
