"""Attention-level speculation on one device (ALSpec, Alg. 1): predict attention, verify it, recover on a miss.

Legend: B batch, N tokens, M model dim, H query heads, D head dim, n live rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from spec_sdk.contracts import AttentionVerifier, Guarantee, Predictor, SpeculativeAttention
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.lipschitz import LipschitzEstimate, TokenStates
from spec_sdk.model.runners.base import AttentionReport, BlockRunner, LayerMeasurement

Estimate = Callable[[Decoder, TokenStates, ForwardPass], LipschitzEstimate]


class AttentionSpeculativeRunner(BlockRunner):
    """Goes on with predicted attention where the verifier accepts it, with the exact one elsewhere.

    On one device nothing is gained in time: both are computed, and what a hit would have allowed to overlap is not. The
    tokens are those of the two-device schedule, in which a layer's miss re-runs its post-attention work on exact
    attention. Attention itself is always computed from the K and V that the accepted path produced. The host waits for
    no layer's verdict: what it chose is read once, after the last one.

    A runner serves one request, as its predictor does. ``sum_over_heads`` adds up the squared norms [2, B, N] over the
    ranks that share a layer's heads; one rank has them all. ``estimate`` makes the constants of the error bounds, of
    which there are none without it.
    """

    def __init__(
        self,
        predictor: Predictor,
        verifier: AttentionVerifier,
        sum_over_heads: Callable[[torch.Tensor], torch.Tensor] = lambda squares: squares,
        estimate: Estimate | None = None,
    ) -> None:
        self.predictor = predictor
        self.verifier = verifier
        self.guarantee: Guarantee = verifier.guarantee
        self._sum_over_heads = sum_over_heads
        self._estimate = estimate
        self._report: AttentionReport | None = None

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        guessing = not self.predictor.always_exact(work.mask.prefix)
        live = work.mask.live_queries
        measured: list[LayerMeasurement | None] = [None] * decoder.layers
        norms = [_largest_norm(h_BNM[:, :live])]
        states = TokenStates([], [])
        for layer in range(decoder.layers):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            if guessing and self.verifier.speculates(layer):
                a_BNM, measured[layer] = self._speculate(decoder, layer, q_BNHD, work)
            else:
                a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            if self._estimate is not None and guessing:
                states.entering.append(h_BNM[:1, :1])
                states.attended.append(h_BNM[:1, :1] + a_BNM[:1, :1])
            h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            norms.append(_largest_norm(h_BNM[:, :live]))
            work.record(layer + 1, h_BNM)
        constants = None
        if self._estimate is not None and guessing:
            # told once per request, and computed only if the report is read, so that no stage's time has it
            constants = functools.partial(self._estimate, decoder, states, work)
            self._estimate = None
        self._report = AttentionReport.of(measured, norms, self.verifier.space, constants)
        return h_BNM

    def report(self) -> AttentionReport | None:
        return self._report

    def commit(self, path: Sequence[int]) -> None:
        self.predictor.commit(path)

    def truncate(self, length: int) -> None:
        self.predictor.truncate(length)

    def _speculate(
        self, decoder: Decoder, layer: int, q_BNHD: torch.Tensor, work: ForwardPass
    ) -> tuple[torch.Tensor, LayerMeasurement]:
        """The attention sub-layer's output [B, N, M], from the prediction if it was a hit, and what was measured."""
        k_BGSD, v_BGSD = work.cache.keys_values(layer, work.mask.keys)
        attention = self.predictor.speculate(layer, q_BNHD, k_BGSD, v_BGSD, work.mask, work.ops)
        if attention.chunk_lse_BNHC is not None:
            self.predictor.learn(layer, attention.chunk_lse_BNHC)
        measured, projected = self.measure(decoder, layer, attention, work.mask.live_queries)
        if projected is not None:
            return torch.where(measured.verdict.hit, *projected), measured
        chosen_BNHD = torch.where(measured.verdict.hit, attention.predicted_BNHD, attention.exact_BNHD)
        return decoder.project(layer, chosen_BNHD), measured

    def measure(
        self, decoder: Decoder, layer: int, attention: SpeculativeAttention, live: int
    ) -> tuple[LayerMeasurement, tuple[torch.Tensor, torch.Tensor] | None]:
        """The verdict on the first ``live`` rows; prediction and exact attention projected, if that is its space."""
        if self.verifier.space == "residual":
            predicted = decoder.project(layer, attention.predicted_BNHD)
            exact = decoder.project(layer, attention.exact_BNHD)
            squares_2BN = torch.stack(
                ((predicted.float() - exact.float()).square().sum(-1), exact.float().square().sum(-1))
            )
            return self._verify(layer, squares_2BN[:, :, :live]), (predicted, exact)
        squares_2BN = self._sum_over_heads(torch.stack((attention.difference_sq_BN, attention.norm_sq_BN)))
        return self._verify(layer, squares_2BN[:, :, :live]), None

    def _verify(self, layer: int, squares_2Bn: torch.Tensor) -> LayerMeasurement:
        difference_sq_Bn, norm_sq_Bn = squares_2Bn
        return LayerMeasurement(self.verifier.verify(layer, difference_sq_Bn, norm_sq_Bn), difference_sq_Bn.sqrt())


def _largest_norm(h_BNM: torch.Tensor) -> torch.Tensor:
    norm_BN: torch.Tensor = torch.linalg.vector_norm(h_BNM.float(), dim=-1)
    return norm_BN.max()
