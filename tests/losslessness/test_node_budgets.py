"""The first-party drafters where hardly a node is left: whether a draw counts must not depend on what it gives.

Draft models are tiny decoders, the target is a table. One cycle is enumerated for every way in which draws and tests of
acceptance can fall; several cycles of one drafter are sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Drafter, Policy, Request, Sampler, SamplingParams
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.models import Model, Models
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.residual import residual
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.testing import SIGNIFICANCE, TableModel, goodness_of_fit, joint_distribution, sample_tokens
from spec_sdk.testing.statistics import cell_of
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.easyspec import EasySpecConfig, EasySpecDrafter
from spec_sdk_drafters.lookahead import LookaheadConfig, LookaheadDrafter
from spec_sdk_drafters.merged import MergedConfig, MergedDrafter
from spec_sdk_drafters.mixed import MixedConfig, MixedDrafter
from spec_sdk_drafters.prompt_lookup import PromptLookup, PromptLookupConfig
from spec_sdk_drafters.suffix import SuffixConfig, SuffixDrafter
from spec_sdk_drafters.token_recycling import TokenRecyclingConfig, TokenRecyclingDrafter
from spec_sdk_growth.auto import AutoConfig, AutoGrowth
from spec_sdk_growth.dynamic import DynamicConfig, DynamicGrowth
from spec_sdk_growth.static import StaticConfig, StaticGrowth
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_verifiers.multi_step import MultiStep
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support.draft_logits import roots_of
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_models import TinyModels

VOCABULARY, TOKENS, PROMPT = 4, 3, (2, 0, 3, 2, 1, 0, 2)
SAMPLINGS = {
    "temperature 1": SamplingParams(temperature=1.0),
    # two of the four tokens are left, so that draws without replacement end early
    "top-k": SamplingParams(temperature=1.5, top_k=2),
}


class SmallModels(TinyModels):
    """Draft models of one vocabulary with the tables; ``second`` is another one."""

    def __init__(self) -> None:
        decoders = [
            load_decoder(
                ModelTensors("smollm", seed, vocab_size=VOCABULARY, num_hidden_layers=3, intermediate_size=16),
                torch.device("cpu"),
                torch.float32,
            )
            for seed in (5, 6)
        ]
        super().__init__(*decoders)
        nothing: Any = None
        self._second = Model("second", TorchExecutor(decoders[0], self.ops), nothing)

    def draft(self, reference: str | None = None, among: Ranks = ALONE) -> Model:
        return self._second if reference == "second" else self._draft


MODELS: Models = SmallModels()
MEMBERS: list[dict[str, Any]] = [
    {"name": "draft_model", "width": 2},
    {"name": "draft_model", "draft": "second", "growth": "static", "widths": [2], "children": "with_replacement"},
    {"name": "prompt_lookup"},
]


def static(children: str, *widths: int) -> DraftModelConfig:
    return DraftModelConfig(growth=StaticGrowth(StaticConfig(list(widths), children)))


def tempered(temperature: float, width: int = 1) -> DraftModelConfig:
    return DraftModelConfig(growth=AutoGrowth(AutoConfig(width=width, temperature=temperature)))


def few_tokens() -> DraftModelConfig:
    """Of the four tokens the lowest, and those of the text as far as it has come: all of the prompt's but one."""
    return DraftModelConfig(vocabulary=1, growth=AutoGrowth(AutoConfig(width=2)))


def easyspec() -> EasySpecDrafter:
    growth, runner = AutoGrowth(AutoConfig(width=3)), LayerParallelRunner(LayerParallelConfig(size=2))
    return EasySpecDrafter(EasySpecConfig(growth=growth, runner=runner), MODELS)


def mixed(model: dict[str, Any]) -> MixedDrafter:
    """Where time is free it asks the model always, and some guesses coincide with what the model draws."""
    return MixedDrafter(MixedConfig(model={"name": "draft_model", **model}, min_probability=0.0), MODELS)


REPEATED = {"children": "with_replacement"}
DRAFTERS: Mapping[str, Callable[[], Drafter]] = {
    "drawn chain": lambda: DraftModelDrafter(DraftModelConfig(), MODELS),
    "drawn paths": lambda: DraftModelDrafter(DraftModelConfig(growth=AutoGrowth(AutoConfig(width=3))), MODELS),
    "drawn with replacement": lambda: DraftModelDrafter(static("with_replacement", 3, 1), MODELS),
    "drawn without replacement": lambda: DraftModelDrafter(static("without_replacement", 3, 1), MODELS),
    "sharpened chain": lambda: DraftModelDrafter(tempered(0.4), MODELS),
    "flattened paths": lambda: DraftModelDrafter(tempered(3.0, width=3), MODELS),
    "drawn of few tokens": lambda: DraftModelDrafter(few_tokens(), MODELS),
    "chosen": lambda: DraftModelDrafter(static("top_k", 2, 2), MODELS),
    "dynamic": lambda: DraftModelDrafter(DraftModelConfig(growth=DynamicGrowth(DynamicConfig(width=2))), MODELS),
    "easyspec": easyspec,
    "merged": lambda: MergedDrafter(MergedConfig(MEMBERS), MODELS),
    "lookup tree": lambda: PromptLookup(PromptLookupConfig(matches=4), MODELS),
    "lookahead": lambda: LookaheadDrafter(LookaheadConfig(window=2, ngram=2, guesses=2), MODELS),
    "suffix": lambda: SuffixDrafter(SuffixConfig(min_probability=0.0), MODELS),
    "mixed, drawn with replacement": lambda: mixed({"growth": "static", "widths": [3, 1], **REPEATED}),
    "mixed, drawn without replacement": lambda: mixed({"width": 3}),
    "mixed, chosen": lambda: mixed({"growth": "dynamic", "width": 2}),
}
LEARNING: Mapping[str, Callable[[], Drafter]] = {
    **{name: DRAFTERS[name] for name in DRAFTERS if name.startswith(("lookahead", "suffix", "mixed"))},
    "token recycling": lambda: TokenRecyclingDrafter(TokenRecyclingConfig(min_probability=0.0, successors=3), MODELS),
    "kept": lambda: MixedDrafter(MixedConfig(min_probability=0.05, keep_across_prompts=True), MODELS),
}
"""What they draft depends on what was emitted before, and with ``kept`` on earlier answers too."""


def table() -> TableModel:
    """The target. At the prompt it likes two tokens better than a draft model does: were it one, a rejection would tell
    the next token, however wrong the rule.
    """
    return TableModel(VOCABULARY, 0)


class Granted(Policy):
    """Always the same budget."""

    name = "granted"

    def budget(self, request: Request) -> Budget:
        budget: Budget = self.config
        return budget


class Priced(Policy):
    """Prices, and what a second is worth, that vary with what the answer has come to."""

    name = "priced"

    def budget(self, request: Request) -> Budget:
        heard = sum(request.tokens[request.prompt_length :]) + request.step
        price = (0.02, 0.0, 0.3)[heard % 3]
        return Budget(3, 5, tuple(price * n for n in range(5)), price, (100.0, 1e-6, 2000.0)[heard % 3])


def test_a_residual_distribution_is_no_point_mass() -> None:
    sampler = ReferenceSampler(None, SAMPLINGS["temperature 1"])
    for reference in (None, "second"):
        logits_NV = torch.stack(
            [table().logits(PROMPT), *roots_of(MODELS.session(MODELS.draft(reference)).feed([0], [PROMPT]))]
        )
        p_V, q_V = sampler.probabilities(logits_NV)
        assert int((residual(p_V, q_V) > 0).sum()) == 2


TELLING = [
    ("drawn with replacement", 3),
    ("drawn paths", 2),
    ("drawn paths", 3),
    ("drawn paths", 5),
    ("merged", 4),
    ("merged", 5),
    ("mixed, drawn with replacement", 5),
    ("mixed, drawn without replacement", 5),
]
"""Where a number of nodes shows a fault soonest: mutants name these."""
ALWAYS = {(*case, sampling) for case in TELLING for sampling in SAMPLINGS} | {
    (name, nodes, sampling)
    for i, name in enumerate(DRAFTERS)
    for nodes, sampling in zip((2, 4), (*SAMPLINGS, *SAMPLINGS)[i % 2 :], strict=False)
}
"""Every drafter with few nodes and with more, and with either sampling; these and those in both combinations."""


@pytest.mark.parametrize(
    ("name", "nodes", "sampling"),
    [
        pytest.param(*case, marks=[pytest.mark.full] * (case not in ALWAYS))
        for case in itertools.product(DRAFTERS, (2, 3, 4, 5), SAMPLINGS)
    ],
)
def test_every_outcome_of_a_cycle(name: str, nodes: int, sampling: str) -> None:
    check_outcomes(name, Budget(3, nodes), sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["drawn paths", "drawn with replacement", "drawn without replacement"])
def test_every_outcome_of_siblings(name: str, sampling: str) -> None:
    """Three draws at the root: where trees may be deep, few nodes leave one."""
    check_outcomes(name, Budget(1, 4), sampling)


def check_outcomes(name: str, budget: Budget, sampling: str) -> None:
    target, params, policy = table(), SAMPLINGS[sampling], Granted(budget)
    emitted = cycle_distribution(target, DRAFTERS[name], MultiStep(None), params, PROMPT, policy=policy)
    length = max(map(len, emitted))
    distribution = completed_distribution(emitted, target, params, PROMPT, length)
    expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
    assert (distribution - expected).abs().max() < 1e-6
    # a chosen token may be one that top-k rules out
    assert length > 1 or params.top_k


GROWN = ("drawn with replacement", "drawn without replacement", "easyspec", "merged")


@pytest.mark.parametrize(
    ("name", "sampler_class"),
    [
        *((name, ReferenceSampler) for name in (*GROWN, *LEARNING)),
        *((name, ExactSampler) for name in GROWN[:2]),
        # they draw as those do
        *(pytest.param(name, ExactSampler, marks=pytest.mark.full) for name in (*GROWN[2:], *LEARNING)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_cycles_of_one_drafter(
    name: str, sampler_class: Callable[[Any, SamplingParams], Sampler], scale: Callable[[int, int], int]
) -> None:
    """Its cache holds what earlier cycles accepted."""
    target, draws = table(), scale(120, 10_000)
    sampler = sampler_class(None, SAMPLINGS["temperature 1"])
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(
        target,
        {**DRAFTERS, **LEARNING}[name](),
        MultiStep(None),
        sampler,
        PROMPT,
        TOKENS,
        draws,
        policy=Granted(Budget(3, 4)),
    ):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS)) > SIGNIFICANCE


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name.startswith("mixed")])
def test_cycles_of_one_drafter_at_prices_that_vary(name: str, sampling: str, scale: Callable[[int, int], int]) -> None:
    """It learns from answer to answer when its model is worth asking, how deep and how wide."""
    target, draws, params = table(), scale(150, 10_000), SAMPLINGS[sampling]
    sampler, drafter = ReferenceSampler(None, params), DRAFTERS[name]()
    counts = torch.zeros(VOCABULARY**TOKENS)
    for tokens in sample_tokens(target, drafter, MultiStep(None), sampler, PROMPT, TOKENS, draws, policy=Priced(None)):
        counts[cell_of(tokens, VOCABULARY)] += 1
    assert goodness_of_fit(counts, draws * joint_distribution(target, sampler, PROMPT, TOKENS)) > SIGNIFICANCE
