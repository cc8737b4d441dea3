"""Attention-level speculation on one device (ALSpec, Alg. 1): predict attention, verify it, recover on a miss.

Legend: B batch, N tokens, M model dim, H query heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spec_sdk.contracts import AttentionVerdict, AttentionVerifier, Guarantee, Predictor
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.base import AttentionReport, BlockRunner


class AttentionSpeculativeRunner(BlockRunner):
    """Goes on with predicted attention where the verifier accepts it, with the exact one elsewhere.

    On one device nothing is gained in time: both are computed, and what a hit would have allowed to overlap is not. The
    tokens are those of the two-device schedule, in which a layer's miss re-runs its post-attention work on exact
    attention. Attention itself is always computed from the K and V that the accepted path produced. The host waits for
    no layer's verdict: what it chose is read once, after the last one.

    A runner serves one request, as its predictor does. ``sum_over_heads`` adds up the squared norms [2, B, N] over the
    ranks that share a layer's heads; one rank has them all.
    """

    def __init__(
        self,
        predictor: Predictor,
        verifier: AttentionVerifier,
        sum_over_heads: Callable[[torch.Tensor], torch.Tensor] = lambda squares: squares,
    ) -> None:
        self.predictor = predictor
        self.verifier = verifier
        self.guarantee: Guarantee = verifier.guarantee
        self._sum_over_heads = sum_over_heads
        self._report: AttentionReport | None = None

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        guessing = not self.predictor.always_exact(work.mask.prefix)
        verdicts: list[AttentionVerdict | None] = [None] * decoder.layers
        for layer in range(decoder.layers):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            if guessing and self.verifier.speculates(layer):
                a_BNM, verdicts[layer] = self._speculate(decoder, layer, q_BNHD, work)
            else:
                a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            work.record(layer + 1, h_BNM)
        self._report = AttentionReport.of(verdicts)
        return h_BNM

    def report(self) -> AttentionReport | None:
        return self._report

    def commit(self, path: Sequence[int]) -> None:
        self.predictor.commit(path)

    def truncate(self, length: int) -> None:
        self.predictor.truncate(length)

    def _speculate(
        self, decoder: Decoder, layer: int, q_BNHD: torch.Tensor, work: ForwardPass
    ) -> tuple[torch.Tensor, AttentionVerdict]:
        """The attention sub-layer's output [B, N, M], from the prediction if it was a hit, and the verdict."""
        k_BGSD, v_BGSD = work.cache.keys_values(layer, work.mask.keys)
        attention = self.predictor.speculate(layer, q_BNHD, k_BGSD, v_BGSD, work.mask, work.ops)
        if attention.chunk_lse_BNHC is not None:
            self.predictor.learn(layer, attention.chunk_lse_BNHC)
        live = work.mask.live_queries
        if self.verifier.space == "residual":
            predicted = decoder.project(layer, attention.predicted_BNHD)
            exact = decoder.project(layer, attention.exact_BNHD)
            squares_2BN = torch.stack(
                ((predicted.float() - exact.float()).square().sum(-1), exact.float().square().sum(-1))
            )
            verdict = self.verifier.verify(layer, *squares_2BN[:, :, :live])
            return torch.where(verdict.hit, predicted, exact), verdict
        squares_2BN = self._sum_over_heads(torch.stack((attention.difference_sq_BN, attention.norm_sq_BN)))
        verdict = self.verifier.verify(layer, *squares_2BN[:, :, :live])
        chosen_BNHD = torch.where(verdict.hit, attention.predicted_BNHD, attention.exact_BNHD)
        return decoder.project(layer, chosen_BNHD), verdict
