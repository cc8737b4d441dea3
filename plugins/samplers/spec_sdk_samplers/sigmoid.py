"""Sigmoid in place of softmax: the approximation of "Optimized speculative sampling", §3.2.2. Relaxed.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from spec_sdk.contracts import Guarantee, SamplingParams
from spec_sdk.errors import UnusableLogits, UserError
from spec_sdk.tree import DraftDistribution, Draw, TokenTree
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.pieces import exceeding, largest, pieces, total
from spec_sdk_samplers.support import filters

LARGEST_HALF = 65504.0
"""Where float16 ends."""
LARGEST_LOGIT = 1e2
"""Logits of language models lie within it."""
HALF_STEP = 2.0**-11
"""Relative rounding of float16: sigmoid values that differ by less are the same number there."""


@dataclass
class SigmoidConfig(ExactConfig):
    """Options of ``exact``, and the scale of the logits.

    ``alpha``: logits are moved by it; below 0. The paper takes -1e3 for speech and -1e4 for summaries.
    ``beta``: and divided by beta - alpha; above 0.
    """

    alpha: float = -1e4
    beta: float = 1e4


class SigmoidSampler(ExactSampler):
    """Judges drawn tokens by σ((z − α)/(β − α)) of target and draft logits, which sum to nothing in particular.

    A token is accepted with min(1, p̂/q̂), and after a rejection the next one comes from max(p̂ − q̂, 0), normalised. A
    token after a wholly accepted path, a node with a chosen token, and plain decoding follow the softmax: the paper
    approximates only where a target and a draft law meet. Logits are divided by the temperature first; what top-k,
    top-p and min-p leave out has p̂ = 0. Draws of one node are tried in turn against what is left of p̂, which is not
    renormalised between them, since q̂ is not normalised either.
    """

    name = "sigmoid"
    aliases = ()
    guarantee: ClassVar[Guarantee] = "relaxed"
    Config = SigmoidConfig
    config: SigmoidConfig

    def __init__(self, config: SigmoidConfig | None, params: SamplingParams) -> None:
        super().__init__(config, params)
        if not -float("inf") < self.config.alpha < 0:
            raise UserError(f"sampler.alpha: {self.config.alpha} must be below 0")
        if not 0 < self.config.beta < float("inf"):
            raise UserError(f"sampler.beta: {self.config.beta} must be above 0")

    def cautions(self, dtype: torch.dtype) -> list[str]:
        where = f"sampler.alpha={self.config.alpha:g}, sampler.beta={self.config.beta:g}"
        return [f"{where}: {warning}" for warning in scale_warnings(self.config.alpha, self.config.beta, dtype)]

    def scales(self) -> tuple[float, float] | None:
        return self.config.alpha, self.config.beta

    def try_draws(
        self, tree: TokenTree, node: int, draws: tuple[Draw, ...], logits_V: torch.Tensor, uniforms: list[float]
    ) -> tuple[int | None, torch.Tensor, torch.Tensor | None]:
        sources = [draw.source for draw in draws]
        if not sources or not all(isinstance(source, DraftDistribution) for source in sources):
            return super().try_draws(tree, node, draws, logits_V, uniforms)
        # a sigmoid would make numbers of infinities, and of NaN anywhere but at the token
        if not math.isfinite(largest(logits_V)):
            raise UnusableLogits(node)
        rest_V: torch.Tensor | None = None
        for draw, source, uniform in zip(draws, sources, uniforms, strict=False):
            assert isinstance(source, DraftDistribution)
            token = tree.token_N[draw.node]
            p_V = self._sigmoid(logits_V[token]) if rest_V is None else rest_V[token]
            p, q = float(p_V), float(self._sigmoid(source.logits_V[token]))
            if math.isnan(q):
                raise UnusableLogits(node, "draft, ")
            if uniform * q < p and (rest_V is not None or self._keeps(logits_V, token, node)):
                return draw.node, logits_V, None
            if rest_V is None:
                rest_V = self._sigmoid_row(logits_V, node, "sigmoid p")
            less_V = self._sigmoid_row(source.logits_V, 0, "sigmoid q").to(rest_V.device)
            rest_V = exceeding(rest_V, less_V, rest_V)
        assert rest_V is not None
        left = total(rest_V)
        if math.isnan(left):
            raise UnusableLogits(node, "draft, ")
        return None, rest_V if left > 0 else self.row_law(logits_V, node, "p"), None

    def _keeps(self, logits_V: torch.Tensor, token: int, row: int) -> bool:
        return not filters(self.params) or bool(self._kept(logits_V, row)[token])

    def _kept(self, logits_V: torch.Tensor, row: int) -> torch.Tensor:
        """What the filters keep of a row, [V]."""
        params = self.params
        if params.top_p < 1 or params.min_p > 0:
            return self.row_law(logits_V, row, "p") > 0
        # a token may be among the k best and yet have a softmax of 0 in float32
        return logits_V >= logits_V.topk(min(params.top_k, logits_V.shape[0])).values[-1]

    def _sigmoid(self, logits: torch.Tensor) -> torch.Tensor:
        alpha, beta = self.config.alpha, self.config.beta
        return torch.sigmoid((logits.float() / self.params.temperature - alpha) / (beta - alpha))

    def _sigmoid_row(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        """In memory that the next call for the same ``use`` writes to."""
        value_V = self._row(use, logits_V)
        for value, logits in pieces(value_V, logits_V):
            value.copy_(self._sigmoid(logits))
        if filters(self.params):
            value_V.masked_fill_(~self._kept(logits_V, row), 0.0)
        return value_V


def scale_warnings(alpha: float, beta: float, dtype: torch.dtype = torch.float32) -> list[str]:
    """What goes wrong with these scales for logits of ``dtype``, known before a run."""
    warnings = []
    width = beta - alpha
    if width < 2 * LARGEST_LOGIT:
        warnings.append(f"beta - alpha = {width:g}: logits of ±{LARGEST_LOGIT:g} saturate the sigmoid")
    # a logit's difference of 1 moves σ by about 1/(4·width); float32 resolves 6e-8 of it, half precision far less
    if 0.25 / width < 8 * torch.finfo(torch.float32).eps:
        warnings.append(f"beta - alpha = {width:g}: logits that differ by 1 give the same value even in float32")
    if dtype == torch.float16:
        if max(abs(alpha), abs(beta), width) + LARGEST_LOGIT > LARGEST_HALF:
            warnings.append(f"scales beyond ±{LARGEST_HALF:g} overflow float16 where the arithmetic is done in it")
        if 0.25 / width < HALF_STEP:
            warnings.append("float16 arithmetic cannot tell logits apart at this scale; ours is done in float32")
    return warnings
