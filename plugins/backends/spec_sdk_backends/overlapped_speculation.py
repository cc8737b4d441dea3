"""Attention-level speculation inside a graph: what follows a prediction runs beside the rest of the exact attention.

Per layer (ALSpec, Alg. 1, on one GPU and two streams):

1. the prediction Â, from both ends of the prefix;
2. on a second stream the rest of the block on Â; meanwhile the exact A from the keys between, and the verdict;
3. the rest of the block on A, by programs that read the verdict and return at once where it is a hit.

No branch is the host's: lengths, slots and verdicts stay on the device, so that a pass is the same launches whatever
becomes of its predictions, and can be captured. A request whose prefix the two ends cover has Â = A to the bit, and
counts as a hit.

Legend: B requests, N rows of a request, M model dim, H query heads, D head dim, S slots, C capacity,
K layers that are predicted, X = 2 + N.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.contracts import AttentionReport, AttentionVerdict, AttentionVerifier, BlockRunner, Predictor
from spec_sdk.errors import UserError
from spec_sdk.guarantees import Guarantee
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.predictable import check_predictable
from spec_sdk.model.unread_reports import UnreadReports
from spec_sdk.ops import Ends
from spec_sdk_backends.recovery import recover, unrecoverable_because
from spec_sdk_backends.speculative_attention import finish, predict_part


class OverlappedSpeculationRunner(BlockRunner):
    """Goes on with predicted attention where ``verifier`` accepts it, and redoes a block's rest where it does not.

    ``ends``: what a prediction is made of (:attr:`Predictor.ends <spec_sdk.contracts.Predictor.ends>`). States and
    reports are those of :class:`~spec_sdk.model.runners.attention_speculative.AttentionSpeculativeRunner` with that
    predictor, but for rounding; the reports are read when they are looked at.

    :meth:`run` raises UserError for a decoder whose blocks cannot be redone, a KV cache in 8 bits, and a verifier that
    measures behind the output projection.
    """

    name = "overlapped_speculation"
    capturable = True

    def __init__(self, verifier: AttentionVerifier, ends: int | Ends) -> None:
        super().__init__()
        self.verifier = verifier
        self.guarantee: Guarantee = verifier.guarantee
        self.ends = Ends.of(ends)
        self._reports: UnreadReports | None = None
        self._side: torch.cuda.Stream | None = None

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        self._check(decoder, work)
        inputs = work.inputs
        padding_BN = torch.arange(inputs.width, device=h_BNM.device) >= inputs.live_B[:, None]
        if h_BNM.is_cuda and self._side is None:
            self._side = torch.cuda.Stream(h_BNM.device)  # type: ignore[no-untyped-call]
        predicted, rows = [], []
        for layer in range(decoder.layers):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            if self.verifier.speculates(layer):
                h_BNM, row_BX = self._speculate(decoder, layer, h_BNM, q_BNHD, work, padding_BN)
                predicted.append(layer)
                rows.append(row_BX)
            else:
                a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
                h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            work.record(layer + 1, h_BNM)
        table_BKX = torch.stack(rows, 1) if rows else h_BNM.new_zeros((inputs.batch, 0, 2), dtype=torch.float32)
        reports = UnreadReports(
            table_BKX, tuple(predicted), decoder.layers, self.verifier.space, lambda prefix: prefix > self.ends.keys
        )
        self._reports = reports.of(inputs) if inputs.host_knows else reports
        return h_BNM

    def reports(self) -> Sequence[AttentionReport]:
        # of a captured pass they lie in the graphs' pool, which would not end before they do
        taken, self._reports = self._reports, None
        return taken if taken is not None else ()

    def _speculate(
        self,
        decoder: Decoder,
        layer: int,
        h_BNM: torch.Tensor,
        q_BNHD: torch.Tensor,
        work: ForwardPass,
        padding_BN: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What leaves the block [B, N, M], and the layer's part of the reports."""
        inputs = work.inputs
        k_SGCD, v_SGCD = (cached[0] for cached in work.cache.layers(layer, layer + 1))
        growing = inputs.kind == "growing"
        keys = q_BNHD, k_SGCD, v_SGCD
        prediction = predict_part(
            *keys,
            inputs.key_end_BT,
            inputs.prefix_B,
            self.ends,
            inputs.key_start_BT if growing else None,
            inputs.query_start_BN if growing else None,
            slot_B=inputs.slot_B,
        )
        # made here, so that memory of the second stream is not handed out while this one still reads it
        out_BNM = torch.empty_like(h_BNM, memory_format=torch.contiguous_format)
        if self._side is None:
            self._go_on(decoder, layer, h_BNM, prediction.o_BNHD, out_BNM)
        else:
            main = torch.cuda.current_stream(h_BNM.device)
            self._side.wait_stream(main)
            with torch.cuda.stream(self._side):
                self._go_on(decoder, layer, h_BNM, prediction.o_BNHD, out_BNM)
        attention = finish(prediction, *keys, inputs.prefix_B, self.ends, slot_B=inputs.slot_B)
        difference_sq_BN = attention.difference_sq_BN.masked_fill(padding_BN, 0.0)
        norm_sq_BN = attention.norm_sq_BN.masked_fill(padding_BN, 1.0)
        # what both ends cover is no guess, whatever the verifier says of an error of 0
        covered_B = inputs.prefix_B <= self.ends.keys
        verdict = self.verifier.verify(layer, difference_sq_BN, norm_sq_BN)
        verdict = AttentionVerdict(verdict.hit_B | covered_B, verdict.error_BN)
        if self._side is not None:
            torch.cuda.current_stream(h_BNM.device).wait_stream(self._side)
        recover(decoder, layer, h_BNM, attention.exact_BNHD, verdict.hit_B, out_BNM)
        return out_BNM, UnreadReports.row(verdict, difference_sq_BN)

    @staticmethod
    def _go_on(decoder: Decoder, layer: int, h_BNM: torch.Tensor, o_BNHD: torch.Tensor, out_BNM: torch.Tensor) -> None:
        a_BNM = decoder.project(layer, o_BNHD)
        out_BNM.copy_(decoder.post_attention(layer, h_BNM, a_BNM))

    @staticmethod
    def unsuited_because(decoder: Decoder, predictor: Predictor, verifier: AttentionVerifier) -> str | None:
        """Why it cannot take the place of the runner that chooses; None if it can."""
        if predictor.ends is None:
            return f"predictor '{predictor.name}' is not made of both ends of a prefix"
        return _unsuited_because(decoder, verifier)

    def _check(self, decoder: Decoder, work: ForwardPass) -> None:
        why = _unsuited_because(decoder, self.verifier)
        if why is None and not work.cache.in_place:
            why = "the KV cache is in 8 bits"
        if why is not None:
            raise UserError(f"overlapped speculation: {why}")
        chosen = [layer for layer in range(decoder.layers) if self.verifier.speculates(layer)]
        check_predictable(decoder.config, decoder.layers, chosen, self.name)

    def truncate(self, slot: int, length: int) -> None:
        """It keeps nothing of a request."""

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """It keeps nothing of a request."""


def _unsuited_because(decoder: Decoder, verifier: AttentionVerifier) -> str | None:
    if verifier.space != "heads":
        return "the attention verifier measures behind the output projection (space=heads does not)"
    return unrecoverable_because(decoder)
