"""What is told of a class is not told of those that do otherwise: kernels would decide in their place."""

from __future__ import annotations

import functools

import torch

from spec_sdk.contracts import Sampler, SamplingParams
from spec_sdk.ops import AttentionMask, Ops, Recipe
from spec_sdk.ops.types import PartialAttention
from spec_sdk.testing import check_predictor, check_sampler
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_samplers.exact import ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidSampler

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)


class SecondBest(ReferenceSampler):
    def choices(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return logits_NV.topk(2).indices[:, 1]


class Sharper(ExactSampler):
    def row_distribution(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        p_V = super().row_distribution(logits_V, row, use).pow_(4)
        return p_V.div_(p_V.sum())


class Named(ExactSampler):
    """Draws as its base does."""

    name = "named"


class Told(Sharper):
    """Says itself how a kernel makes its rows."""

    recipe = ExactSampler.recipe

    def draw(self, p_V: torch.Tensor, random: object) -> int:
        return 0


class Flatter(ExactSampler):
    own_probabilities = True

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return super().probabilities(logits_NV if self.greedy else logits_NV / 3)


class FlatterInRows(ExactSampler):
    """In both ways, so that rows of its own remain."""

    own_probabilities = True

    def probabilities(self, logits_NV: torch.Tensor) -> torch.Tensor:
        return super().probabilities(logits_NV if self.greedy else logits_NV / 3)

    def row_distribution(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        return super().row_distribution(logits_V / 3, row, use)


class Thirds(AttentionSink):
    """Another prediction: every third key."""

    def predict(
        self,
        layer: int,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ops: Ops,
    ) -> PartialAttention:
        if self.always_exact(mask.prefix):
            return super().predict(layer, q_BNHD, k_BGSD, v_BGSD, mask, ops)
        seen_S = torch.tensor([*range(0, mask.prefix, 3), *range(mask.prefix, mask.keys)])
        return ops.selected_attention(q_BNHD, k_BGSD[:, :, seen_S], v_BGSD[:, :, seen_S], mask)


def test_samplers() -> None:
    assert SecondBest(None, GREEDY).recipe is Sharper(None, SAMPLED).recipe is None
    assert ReferenceSampler(None, GREEDY).recipe == Named(None, GREEDY).recipe == Recipe(GREEDY)
    assert Told(None, SAMPLED).recipe == Named(None, SAMPLED).recipe == Recipe(SAMPLED)
    scaled = SigmoidSampler(None, SAMPLED).recipe
    assert scaled is not None and scaled.sigmoid == (-1e4, 1e4)


def test_rows_of_a_samplers_own_probabilities() -> None:
    for plugin in (Flatter, FlatterInRows):
        check_sampler(functools.partial(plugin, None), draws=400)
    assert Flatter.rows is Sampler.rows and Named.rows is Sharper.rows is FlatterInRows.rows is ExactSampler.rows


def test_predictors() -> None:
    config = AttentionSinkConfig(size=4)
    assert AttentionSink(config).ends == config.ends and Thirds(config).ends is None
    check_predictor(Thirds(config), prefixes=(1, 7, 20))
