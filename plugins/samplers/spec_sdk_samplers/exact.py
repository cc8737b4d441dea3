"""The fused sampler: the reference's tokens for the same random numbers, from logits, without an N x V tensor.

On the CPU one row at a time is normalised, and only rows that a verdict needs: those of visited nodes, and of a draft
law whose token was rejected. On a GPU a tree goes through three kernels (:mod:`spec_sdk_samplers.rejection_kernels`),
with one transfer to the host.

Legend: N tree nodes, D draws, V vocabulary.
"""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import torch

from spec_sdk.contracts import Random, SamplingParams
from spec_sdk.errors import UnusableLogits, UserError, did_you_mean
from spec_sdk.tree import DraftDistribution, Draw, TokenTree
from spec_sdk_samplers.candidates import nucleus, top_k_candidates, top_p_candidates
from spec_sdk_samplers.inversion import first_beyond
from spec_sdk_samplers.pieces import exceeding, largest, pieces, total
from spec_sdk_samplers.reference import ReferenceSampler, uniform

KERNELS = ("auto", "triton", "torch")


@dataclass
class ExactConfig:
    """``kernels``: ``triton`` or ``torch``, wherever the logits lie; ``auto`` is triton on a GPU, torch elsewhere."""

    kernels: str = "auto"


class ExactSampler(ReferenceSampler):
    """Gives the tokens that ``reference`` gives for the same random numbers, up to rounding at a decision's border."""

    name = "exact"
    aliases: ClassVar[tuple[str, ...]] = ("fused",)
    Config: ClassVar[type] = ExactConfig

    def __init__(self, config: ExactConfig | None, params: SamplingParams) -> None:
        config = config or self.Config()
        if config.kernels not in KERNELS:
            raise UserError(f"sampler.kernels: unknown value {config.kernels!r}{did_you_mean(config.kernels, KERNELS)}")
        if config.kernels == "triton" and importlib.util.find_spec("triton") is None:
            raise UserError(
                "sampler.kernels: triton is not installed: pip install triton, or use sampler.kernels=torch"
            )
        super().__init__(config, params)
        self._scratch = threading.local()

    def uses_triton(self, device: torch.device) -> bool:
        """Whether logits on ``device`` are decided by the kernels."""
        return self.config.kernels == "triton" or (
            self.config.kernels == "auto" and device.type == "cuda" and importlib.util.find_spec("triton") is not None
        )

    def draw_from(self, law: DraftDistribution, random: Random) -> int:
        """From one row of logits. Remembered is the token's own probability, which is all that its test will need.

        Raises UnusableLogits as :meth:`probabilities` does.
        """
        q_V = self.row_law(law.logits_V, 0, "q")
        token = first_beyond(q_V, uniform(random))
        known = law.known if isinstance(law.known, dict) else {}
        law.known = known | {token: float(q_V[token])}
        return token

    def rejection(
        self, tree: TokenTree, logits_NV: torch.Tensor, uniform_D: torch.Tensor, step: int = 0
    ) -> tuple[list[int], int] | None:
        """Raises UnusableLogits, whose row is the tree node, for logits of a visited node that give no distribution."""
        if self.greedy:
            return None
        if self.uses_triton(logits_NV.device):
            # triton is imported here and not above: machines without a GPU need not have it
            from spec_sdk_samplers.fused_rejection import tree_verdict

            return tree_verdict(tree, logits_NV, uniform_D, self.params, self.scales())
        return self.walk(tree, logits_NV, uniform_D)

    def scales(self) -> tuple[float, float] | None:
        """α and β where laws are approximated by a sigmoid; None where they are not."""
        return None

    def walk(self, tree: TokenTree, logits_NV: torch.Tensor, uniform_D: torch.Tensor) -> tuple[list[int], int]:
        """The rule in torch, for trees and draws of every kind: node by node, each row normalised when it is needed."""
        uniforms: list[float] = uniform_D.tolist()
        path, first = [0], tree.first_draw_N1
        while True:
            node = path[-1]
            draws = tree.draws_N[node]
            child, rest_V, less_V = self.try_draws(tree, node, draws, logits_NV[node], uniforms[first[node] :])
            if child is not None:
                path.append(child)
                continue
            token = first_beyond(rest_V, uniforms[-1], less_V)
            if token < 0:
                raise UnusableLogits(node)
            return path, token

    def try_draws(
        self, tree: TokenTree, node: int, draws: tuple[Draw, ...], logits_V: torch.Tensor, uniforms: list[float]
    ) -> tuple[int | None, torch.Tensor, torch.Tensor | None]:
        """The accepted child of ``node``, or None; and what is left of the target's law, up to a factor.

        What is left are two rows, p and q, of which the next token comes from max(p - q, 0); or p alone.
        """
        p_V = self.row_law(logits_V, node, "p")
        left: dict[int, torch.Tensor] = {}
        for i, draw in enumerate(draws):
            token, is_last = tree.token_N[draw.node], i + 1 == len(draws)
            p = float(p_V[token])
            if draw.kind == "chosen":
                if uniforms[i] < p:
                    return draw.node, p_V, None
                _remove(p_V, token, normalised=not is_last)
                continue
            source, sequence = draw.source, draw.sequence
            q_V = left.get(sequence) if sequence is not None else None
            known = source.known if isinstance(source, DraftDistribution) and q_V is None else None
            q = known.get(token) if isinstance(known, dict) else None
            if q is None:
                q_V = self._draft_row(draw, node, p_V.device) if q_V is None else q_V
                q = float(q_V[token])
            if not q > 0:
                raise ValueError(
                    f"tree node {draw.node}: drafter {draw.drafter!r} says that it drew token {token} from a "
                    f"distribution in which that token has probability {q}"
                )
            if uniforms[i] * q < p:
                return draw.node, p_V, None
            q_V = self._draft_row(draw, node, p_V.device) if q_V is None else q_V
            if is_last:
                return None, p_V, q_V
            p_V = self._residual(p_V, q_V)
            if sequence is not None:
                if sequence not in left:
                    left[sequence] = q_V.clone()
                _remove(left[sequence], token)
        return None, p_V, None

    def _residual(self, p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
        """norm(max(p - q, 0)), in a row of our own; ``p_V``, which is not written to, if that is nothing."""
        out_V = self._row("rest", p_V)
        if out_V.data_ptr() == p_V.data_ptr():
            # the second rejection at a node: what the first one left gives way
            out_V = self._row("p", p_V)
        exceeding(p_V, q_V, out_V)
        whole = total(out_V)
        if not whole > 0:
            return p_V
        for (out,) in pieces(out_V):
            out.div_(whole)
        return out_V

    def _draft_row(self, draw: Draw, node: int, device: torch.device) -> torch.Tensor:
        """q [V] of ``draw``, made at ``node``, on ``device``: not to be written to."""
        source = draw.source
        assert source is not None
        q_V = source.made if isinstance(source, DraftDistribution) else source
        if q_V is None:
            assert isinstance(source, DraftDistribution)
            try:
                q_V = self.row_law(source.logits_V, 0, "q")
            except UnusableLogits as error:
                raise UnusableLogits(node, "draft, ") from error
        return q_V.to(device)

    def _row(self, use: str, like_V: torch.Tensor) -> torch.Tensor:
        """A float32 row [V] to write to, one per use and thread: memory touched for the first time costs more than the
        arithmetic on it.
        """
        rows = self._scratch.__dict__
        known = rows.get(use)
        if known is None or known.shape != like_V.shape or known.device != like_V.device:
            known = rows[use] = torch.empty_like(like_V, dtype=torch.float32)
        row_V: torch.Tensor = known
        return row_V

    def row_law(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        """The law [V] of one row, float32, in memory that the next call for the same ``use`` writes to.

        Raises UnusableLogits, naming ``row``.
        """
        params = self.params
        if 0 < params.top_k < logits_V.shape[0]:
            return self._top_k_law(logits_V, row, use)
        score_V = logits_V
        if params.temperature != 1 or score_V.dtype != torch.float32:
            score_V = self._scaled(score_V)
        p_V = torch.softmax(score_V, -1, out=self._row(use, logits_V))
        # a softmax is NaN in every place or in none
        if not float(p_V[0]) >= 0:
            raise UnusableLogits(row)
        if params.top_p < 1:
            id_K = top_p_candidates(p_V, params.top_p)
            return self._spread(self._filtered(p_V[id_K]), id_K, p_V)
        return self._filtered(p_V)

    def _top_k_law(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        id_K, top = top_k_candidates(logits_V, self.params.top_k)
        if not isfinite(top):
            raise UnusableLogits(row)
        score_K = (logits_V[id_K].float() - top) / max(self.params.temperature, torch.finfo(torch.float32).tiny)
        return self._spread(self._filtered(score_K.softmax(-1)), id_K, self._row(use, logits_V))

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
        score_V = self._row("score", logits_V)
        top = largest(logits_V) if temperature != 1 else 0.0
        for score, logits in pieces(score_V, logits_V):
            score.copy_(logits)
            if temperature != 1:
                score.sub_(top).div_(max(temperature, torch.finfo(torch.float32).tiny))
        return score_V


def _remove(p_V: torch.Tensor, token: int, normalised: bool = True) -> None:
    """Take ``token`` from ``p_V`` and renormalise, in place; nothing happens if there is no other token."""
    kept = p_V[token].clone()
    p_V[token] = 0.0
    rest = total(p_V)
    if not rest > 0:
        p_V[token] = kept
    elif normalised:
        for (p,) in pieces(p_V):
            p.div_(rest)
