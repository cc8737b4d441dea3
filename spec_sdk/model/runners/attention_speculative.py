"""Attention-level speculation on one device (ALSpec, Alg. 1): predict attention, verify it, recover on a miss.

Legend: B batch, N tokens, M model dim, H query heads, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.contracts import AttentionVerifier, Guarantee, Predictor
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.base import AttentionReport, BlockRunner


class AttentionSpeculativeRunner(BlockRunner):
    """Goes on with predicted attention where the verifier accepts it, with the exact one elsewhere.

    On one device nothing is gained in time: both are computed, and what a hit would have allowed to overlap is not. The
    tokens are those of the two-device schedule, in which a layer's miss re-runs its post-attention work on exact
    attention. Attention itself is always computed from the K and V that the accepted path produced.
    """

    def __init__(self, predictor: Predictor, verifier: AttentionVerifier) -> None:
        self.predictor = predictor
        self.verifier = verifier
        self.guarantee: Guarantee = verifier.guarantee
        self._report: AttentionReport | None = None

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        guessing = not self.predictor.always_exact(work.mask.prefix)
        hits: list[bool | None] = [None] * decoder.layers
        errors: list[float | None] = [None] * decoder.layers
        for layer in range(decoder.layers):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            o_BNHD = decoder.attend(layer, q_BNHD, work)
            if guessing:
                k_BGSD, v_BGSD = work.cache.keys_values(layer, work.mask.keys)
                prediction = self.predictor.predict(layer, q_BNHD, k_BGSD, v_BGSD, work.mask, work.ops)
                verdict = self.verifier.verify(layer, prediction.o_BNHD, o_BNHD)
                hits[layer], errors[layer] = verdict.hit, float(verdict.error_BN.max())
                if verdict.hit:
                    o_BNHD = prediction.o_BNHD.to(o_BNHD.dtype)
            h_BNM = decoder.post_attention(layer, h_BNM, decoder.project(layer, o_BNHD))
            work.record(layer + 1, h_BNM)
        self._report = AttentionReport(tuple(hits), tuple(errors))
        return h_BNM

    def report(self) -> AttentionReport | None:
        return self._report
