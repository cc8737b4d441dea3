"""The fused sampler: the reference's tokens for the same random numbers, from logits, without an N x V tensor.

In torch one row at a time is normalised, and only rows that a verdict needs: those of visited nodes, and of a draft
distribution whose token was rejected. Where the backend has kernels for the rule, these get the logits.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import torch

from spec_sdk.contracts import Random, Sampler, SamplingParams, option
from spec_sdk.errors import UnusableLogits, UserError
from spec_sdk.ops import DrawnTree, FromLogits, Ops, Recipe, Rows
from spec_sdk.ops.draws import Drawing
from spec_sdk.ops.inversion import draw, next_uniform
from spec_sdk.ops.pieces import largest, pieces
from spec_sdk.plugin import not_inherited
from spec_sdk.tree import DraftDistribution, Draw
from spec_sdk_samplers.candidates import nucleus, top_k_candidates, top_p_candidates
from spec_sdk_samplers.reference import ReferenceSampler


@dataclass
class ExactConfig:
    """Options of ``sampler=exact``."""

    kernels: str = option(
        "auto",
        "what accepts and draws",
        choices={"auto": "what the backend has", "triton": "", "torch": ""},
    )


class ExactSampler(ReferenceSampler):
    """Gives the tokens that ``reference`` gives for the same random numbers, up to rounding at a decision's border."""

    name = "exact"
    aliases: ClassVar[tuple[str, ...]] = ("fused",)
    Config: ClassVar[type] = ExactConfig

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        not_inherited(cls, "recipe", Sampler.recipe, ["row_distribution"])
        if "row_distribution" not in vars(cls):
            # rows of its own way would pass by what such a class makes of logits
            for name in ("rows", "draw_from", "draw_different"):
                not_inherited(cls, name, getattr(Sampler, name), ["probabilities"])

    def __init__(self, config: ExactConfig | None, params: SamplingParams) -> None:
        config = config or self.Config()
        if config.kernels == "triton" and importlib.util.find_spec("triton") is None:
            raise UserError(
                "sampler.kernels: triton is not installed: pip install 'spec-sdk[cuda]', or use sampler.kernels=torch"
            )
        super().__init__(config, params)
        self._scratch = threading.local()
        self.ops = None if config.kernels == "auto" else ops_with(config.kernels)

    def draw_from(self, distribution: DraftDistribution, random: Random) -> int:
        """From one row of logits. Remembered is the token's own probability, which is all that its test will need.

        Raises UnusableLogits as :meth:`probabilities` does.
        """
        drawing = self._drawing(distribution)
        if drawing is not None:
            token = drawing.draw(next_uniform(random))
            return self._remembered(distribution, token, drawing.probability(token))
        q_V = self.row_distribution(distribution.logits_V, 0, "q")
        token = draw(q_V, next_uniform(random))
        return self._remembered(distribution, token, float(q_V[token]))

    def draw_different(self, distribution: DraftDistribution, count: int, random: torch.Generator) -> list[int]:
        drawing = self._drawing(distribution)
        if drawing is None:
            return super().draw_different(distribution, count, random)
        tokens = list[int]()
        while len(tokens) < count:
            tokens.append(drawing.draw(next_uniform(random)))
            if len(tokens) == 1:
                self._remembered(distribution, tokens[0], drawing.probability(tokens[0]))
            drawing.remove(tokens[-1])
            if drawing.probability(tokens[-1]) > 0:
                break
        return tokens

    def _drawing(self, distribution: DraftDistribution) -> Drawing | None:
        """What a kernel draws from, where there is one that this sampler may use."""
        ops = self.ops or self.backend_ops
        if ops is None or self.greedy or self.recipe is None or distribution.made is not None:
            return None
        return ops.drawing(distribution.logits, self.params)

    @staticmethod
    def _remembered(distribution: DraftDistribution, token: int, probability: float) -> int:
        distribution.known[token] = probability
        return token

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        return super().rows(tree, logits_NV) if self.greedy else RowsFromLogits(self, tree, logits_NV)

    @property
    def recipe(self) -> Recipe | None:
        return Recipe(self.params, None if self.greedy else self.scales())

    def scales(self) -> tuple[float, float] | None:
        """α and β where distributions are approximated by a sigmoid; None where they are not."""
        return None

    def scratch_row(self, use: str, like_V: torch.Tensor) -> torch.Tensor:
        """A float32 row [V] to write to, one per use and thread: memory touched for the first time costs more than the
        arithmetic on it.
        """
        rows = self._scratch.__dict__
        known = rows.get(use)
        if known is None or known.shape != like_V.shape or known.device != like_V.device:
            known = rows[use] = torch.empty_like(like_V, dtype=torch.float32)
        row_V: torch.Tensor = known
        return row_V

    def row_distribution(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        """The distribution [V] of one row, float32, in memory that the next call for the same ``use`` writes to.

        Raises UnusableLogits, naming ``row``.
        """
        params = self.params
        if 0 < params.top_k < logits_V.shape[0]:
            return self._top_k_distribution(logits_V, row, use)
        score_V = logits_V
        if params.temperature != 1 or score_V.dtype != torch.float32:
            score_V = self._scaled(score_V)
        p_V = torch.softmax(score_V, -1, out=self.scratch_row(use, logits_V))
        # a softmax is NaN in every place or in none
        if not float(p_V[0]) >= 0:
            raise UnusableLogits(row)
        if params.top_p < 1:
            id_K = top_p_candidates(p_V, params.top_p)
            return self._spread(self._filtered(p_V[id_K]), id_K, p_V)
        return self._filtered(p_V)

    def _top_k_distribution(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        id_K, top = top_k_candidates(logits_V, self.params.top_k)
        if not isfinite(top):
            raise UnusableLogits(row)
        score_K = (logits_V[id_K].float() - top) / max(self.params.temperature, torch.finfo(torch.float32).tiny)
        return self._spread(self._filtered(score_K.softmax(-1)), id_K, self.scratch_row(use, logits_V))

    def _filtered(self, p_K: torch.Tensor) -> torch.Tensor:
        """``p_K``, written to, under top-p and min-p; its sum is 1 if one of them is on."""
        params = self.params
        if params.top_p < 1:
            p_K = nucleus(p_K, params.top_p)
        if params.min_p > 0:
            p_K = p_K.masked_fill_(p_K < params.min_p * p_K.amax(), 0.0)
        return p_K.div_(p_K.sum()) if params.top_p < 1 or params.min_p > 0 else p_K

    @staticmethod
    def _spread(p_K: torch.Tensor, id_K: torch.Tensor, out_V: torch.Tensor) -> torch.Tensor:
        """``p_K`` at its ids in ``out_V``, and 0 elsewhere."""
        for (out,) in pieces(out_V):
            out.zero_()
        return out_V.index_copy_(0, id_K, p_K)

    def _scaled(self, logits_V: torch.Tensor) -> torch.Tensor:
        """The logits in float32, divided by the temperature up to a constant, in a row of our own.

        What is divided are differences from the largest: quotients of the logits themselves would be so large that
        float32 rounds away what tells them apart, or end as infinities.
        """
        temperature = self.params.temperature
        score_V = self.scratch_row("score", logits_V)
        top = largest(logits_V) if temperature != 1 else 0.0
        for score, logits in pieces(score_V, logits_V):
            score.copy_(logits)
            if temperature != 1:
                score.sub_(top).div_(max(temperature, torch.finfo(torch.float32).tiny))
        return score_V


@functools.cache
def ops_with(kernels: str) -> Ops:
    """One for all requests, which are decided together where they share their operations."""
    if kernels == "torch":
        return Ops()
    # imported here and not above: machines without a GPU need not have triton
    from spec_sdk_backends.triton_ops import TritonOps

    return TritonOps()


class RowsFromLogits(Rows):
    """One row at a time, in memory that the next of its kind is written to, and only where a rule asks for it."""

    sampler: ExactSampler

    def __init__(self, sampler: ExactSampler, tree: DrawnTree, logits_NV: torch.Tensor) -> None:
        super().__init__(tree, logits_NV, sampler.greedy)
        self.sampler = sampler
        self.from_logits = FromLogits(logits_NV, sampler.params, sampler.scales())

    def target(self, node: int) -> torch.Tensor:
        return self.sampler.row_distribution(self.logits_NV[node], node, "p")

    def draft(self, draw: Draw, node: int) -> torch.Tensor:
        source = self.source(draw)
        q_V = source.made if isinstance(source, DraftDistribution) else source
        if q_V is None:
            assert isinstance(source, DraftDistribution)
            try:
                q_V = self.sampler.row_distribution(source.logits_V, 0, "q")
            except UnusableLogits as error:
                raise UnusableLogits(node, "draft, ") from error
        return q_V.to(self.logits_NV.device)

    def known(self, draw: Draw) -> float | None:
        source = draw.source
        return source.known.get(self.tree.token_N[draw.node]) if isinstance(source, DraftDistribution) else None

    def spare(self, beside_V: torch.Tensor) -> torch.Tensor:
        row_V = self.sampler.scratch_row("rest", beside_V)
        # the second rejection at a node: what the first one left gives way
        return row_V if row_V.data_ptr() != beside_V.data_ptr() else self.sampler.scratch_row("p", beside_V)

    def choice_N(self) -> torch.Tensor:
        return self.sampler.choices(self.logits_NV)
