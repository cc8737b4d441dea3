"""Sigmoid in place of softmax: the approximation of "Optimized speculative sampling", §3.2.2. Relaxed.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from spec_sdk.contracts import Guarantee, option
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops import DrawnTree, Left, Rows
from spec_sdk.ops.inversion import first_beyond
from spec_sdk.ops.pieces import exceeding, largest, pieces, total
from spec_sdk.tree import DraftDistribution, Draw
from spec_sdk_samplers.exact import ExactConfig, ExactSampler, RowsFromLogits

LARGEST_HALF = 65504.0
"""Where float16 ends."""
LARGEST_LOGIT = 1e2
"""Logits of language models lie within it."""
HALF_STEP = 2.0**-11
"""Relative rounding of float16: sigmoid values that differ by less are the same number there."""


@dataclass
class SigmoidConfig(ExactConfig):
    """Options of ``exact``, and the scale of the logits: the paper takes ±1e3 for speech and ±1e4 for summaries."""

    alpha: float = option(-1e4, "logits z become sigmoid((z - alpha) / (beta - alpha))", below=0, above=-math.inf)
    beta: float = option(1e4, "see alpha", above=0, below=math.inf)


class SigmoidSampler(ExactSampler):
    """Judges drawn tokens by σ((z − α)/(β − α)) of target and draft logits, which sum to nothing in particular.

    A token is accepted with min(1, p̂/q̂), and after a rejection the next one comes from max(p̂ − q̂, 0), normalised. A
    token after a wholly accepted path, a node with a chosen token, and plain decoding follow the softmax: the paper
    approximates only where a target and a draft distribution meet. Logits are divided by the temperature first; what
    top-k, top-p and min-p leave out has p̂ = 0. Draws of one node are tried in turn against what is left of p̂, which
    is not renormalised between them, since q̂ is not normalised either.
    """

    name = "sigmoid"
    guarantee: ClassVar[Guarantee] = "relaxed"
    Config = SigmoidConfig
    config: SigmoidConfig
    # its rows differ by the scales, which that tells
    recipe = ExactSampler.recipe

    def cautions(self, dtype: torch.dtype) -> list[str]:
        where = f"sampler.alpha={self.config.alpha:g}, sampler.beta={self.config.beta:g}"
        return [f"{where}: {warning}" for warning in scale_warnings(self.config.alpha, self.config.beta, dtype)]

    def scales(self) -> tuple[float, float] | None:
        return self.config.alpha, self.config.beta

    def rows(self, tree: DrawnTree, logits_NV: torch.Tensor) -> Rows:
        return super().rows(tree, logits_NV) if self.greedy else SigmoidRows(self, tree, logits_NV)

    def kept(self, logits_V: torch.Tensor, row: int) -> torch.Tensor | None:
        """What the filters keep of a row, bool [V]; None if that is all. Raises UnusableLogits, naming ``row``."""
        params = self.params
        if not params.filtered:
            return None
        if params.top_p < 1 or params.min_p > 0:
            return self.row_distribution(logits_V, row, "p") > 0
        # a token may be among the k best and yet have a softmax of 0 in float32
        return logits_V >= logits_V.topk(min(params.top_k, logits_V.shape[0])).values[-1]

    def sigmoid(self, logits: torch.Tensor) -> torch.Tensor:
        """σ((z/T − α)/(β − α)), elementwise, in float32."""
        alpha, beta = self.config.alpha, self.config.beta
        return torch.sigmoid((logits.float() / self.params.temperature - alpha) / (beta - alpha))

    def sigmoid_row(self, logits_V: torch.Tensor, kept_V: torch.Tensor | None, use: str) -> torch.Tensor:
        """[V], 0 where nothing is kept, in memory that the next call for the same ``use`` writes to."""
        value_V = self.scratch_row(use, logits_V)
        for value, logits in pieces(value_V, logits_V):
            value.copy_(self.sigmoid(logits))
        return value_V if kept_V is None else value_V.masked_fill_(~kept_V, 0.0)


class SigmoidRows(RowsFromLogits):
    """Rows of ``exact``, of which a rule takes by sigmoids where all draws of a node come from draft logits."""

    sampler: SigmoidSampler

    def left(self, node: int) -> Left:
        draws = self.tree.draws_N[node]
        if draws and all(isinstance(draw.source, DraftDistribution) for draw in draws):
            return SigmoidLeft(self, node)
        return super().left(node)


class SigmoidLeft(Left):
    """What is left of p̂ at a node: max(p̂ − q̂, 0) after every rejection, never renormalised, and q̂ as it was."""

    def __init__(self, rows: SigmoidRows, node: int) -> None:
        self.rows: SigmoidRows = rows
        self.node = node
        self._logits_V = rows.logits_NV[node]
        # a sigmoid would make numbers of infinities, and of NaN anywhere but at the token
        if not math.isfinite(largest(self._logits_V)):
            raise UnusableLogits(node)
        self._kept_V = rows.sampler.kept(self._logits_V, node)
        self._rest_V: torch.Tensor | None = None

    def p(self, token: int) -> float:
        if self._rest_V is not None:
            return float(self._rest_V[token])
        if self._kept_V is not None and not self._kept_V[token]:
            return 0.0
        return float(self.rows.sampler.sigmoid(self._logits_V[token]))

    def q(self, draw: Draw) -> float:
        assert isinstance(draw.source, DraftDistribution)
        q = float(self.rows.sampler.sigmoid(draw.source.logits_V[self.rows.tree.token_N[draw.node]]))
        if math.isnan(q):
            raise UnusableLogits(self.node, "draft, ")
        return q

    def reject(self, draw: Draw, last: bool) -> None:
        assert isinstance(draw.source, DraftDistribution)
        sampler, q_logits_V = self.rows.sampler, draw.source.logits_V
        if self._rest_V is None:
            self._rest_V = sampler.sigmoid_row(self._logits_V, self._kept_V, "sigmoid p")
        q_V = sampler.sigmoid_row(q_logits_V, sampler.kept(q_logits_V, 0), "sigmoid q").to(self._rest_V.device)
        exceeding(self._rest_V, q_V, self._rest_V)

    def draw(self, uniform: float) -> int:
        left = 0.0 if self._rest_V is None else total(self._rest_V)
        if math.isnan(left):
            raise UnusableLogits(self.node, "draft, ")
        rest_V = self.rows.target(self.node) if self._rest_V is None or not left > 0 else self._rest_V
        return first_beyond(rest_V, uniform)


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
