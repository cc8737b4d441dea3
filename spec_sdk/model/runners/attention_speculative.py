"""Attention-level speculation on one device (ALSpec, Alg. 1): predict attention, verify it, recover on a miss.

Legend: B requests, N rows of a request, M model dim, H query heads, D head dim, n live rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.contracts import AttentionReport, AttentionVerifier, BlockRunner, Predictor
from spec_sdk.guarantees import Guarantee
from spec_sdk.model.block_runner import LayerMeasurement, PassMeasurement, read_reports
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.lipschitz import LipschitzEstimate, TokenStates
from spec_sdk.ops.pass_inputs import PassPart
from spec_sdk.ops.types import SpeculativeAttention
from spec_sdk.plugin import declared

Estimate = Callable[[Decoder, TokenStates, ForwardPass, PassPart], LipschitzEstimate]


class AttentionSpeculativeRunner(BlockRunner):
    """Goes on with predicted attention where the verifier accepts it, with the exact one elsewhere.

    On one device nothing is gained in time: both are computed, and what a hit would have allowed to overlap is not. The
    tokens are those of the two-device schedule, in which a layer's miss re-runs its post-attention work on exact
    attention. Attention itself is always computed from the K and V that the accepted path produced. The host waits for
    no layer's verdict: what it chose is read once, after the last one. Every request of a pass has a prediction and a
    verdict of its own: one request's miss never touches another's.

    ``make_predictor`` makes the predictor of a request. ``sum_over_heads`` adds up the squared norms [2, B, N] over the
    ranks that share a layer's heads; one rank has them all. ``estimate`` makes the constants of the error bounds;
    without it nothing is measured that only the bounds need.
    """

    name = "attention_speculative"

    def __init__(
        self,
        make_predictor: Callable[[], Predictor],
        verifier: AttentionVerifier,
        sum_over_heads: Callable[[torch.Tensor], torch.Tensor] = lambda squares: squares,
        estimate: Estimate | None = None,
    ) -> None:
        super().__init__()
        self.make_predictor = make_predictor
        self.verifier = verifier
        self.guarantee: Guarantee = verifier.guarantee
        self.predictors: dict[int, Predictor] = {}
        self._sum_over_heads = sum_over_heads
        self._estimate = estimate
        self._estimated: set[int] = set()
        self._reports: list[AttentionReport] = []

    def declaration(self) -> Mapping[str, Any]:
        """``predictor`` and ``attention_verifier``, each its name and options."""
        predictor, verifier = declared(self.make_predictor()), declared(self.verifier)
        return {"name": self.name, "predictor": predictor, "attention_verifier": verifier}

    def predictor(self, slot: int) -> Predictor:
        """That of the request in a slot."""
        if slot not in self.predictors:
            self.predictors[slot] = self.make_predictor()
        return self.predictors[slot]

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        requests = [_RequestPass(part, decoder.layers) for part in work.inputs.parts]
        guessing = [r for r in requests if not self.predictor(r.part.slot).always_exact(r.part.mask.prefix)]
        observed = [] if self._estimate is None else requests
        for request in observed:
            request.note_norm(h_BNM)
        for layer in range(decoder.layers):
            q_BNHD, k_BNGD, v_BNGD = decoder.pre_attention(layer, h_BNM, work)
            decoder.write_kv(layer, k_BNGD, v_BNGD, work)
            if guessing and self.verifier.speculates(layer):
                a_BNM = self._speculate(decoder, layer, q_BNHD, work, requests, guessing)
            else:
                a_BNM = decoder.project(layer, decoder.attend(layer, q_BNHD, work))
            for request in observed:
                if request in guessing and request.part.slot not in self._estimated:
                    first = request.first_row(h_BNM)
                    request.states.entering.append(first)
                    request.states.attended.append(first + request.first_row(a_BNM))
            h_BNM = decoder.post_attention(layer, h_BNM, a_BNM)
            for request in observed:
                request.note_norm(h_BNM)
            work.record(layer + 1, h_BNM)
        self._reports = read_reports([self._measurement(decoder, work, request) for request in requests])
        return h_BNM

    def reports(self) -> Sequence[AttentionReport]:
        return self._reports

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self.predictor(slot).commit(path)

    def truncate(self, slot: int, length: int) -> None:
        if length:
            self.predictor(slot).truncate(length)
        else:
            self.predictors.pop(slot, None)
            self._estimated.discard(slot)

    def _measurement(self, decoder: Decoder, work: ForwardPass, request: _RequestPass) -> PassMeasurement:
        constants = None
        if self._estimate is not None and request.states.entering:
            # told once per request, and computed only if the report is read, so that no stage's time has it
            constants = functools.partial(self._estimate, decoder, request.states, work, request.part)
            self._estimated.add(request.part.slot)
        return PassMeasurement(request.measured, request.norms, self.verifier.space, constants)

    def _speculate(
        self,
        decoder: Decoder,
        layer: int,
        q_BNHD: torch.Tensor,
        work: ForwardPass,
        requests: Sequence[_RequestPass],
        guessing: Sequence[_RequestPass],
    ) -> torch.Tensor:
        """The attention sub-layer's output [B, N, M]: of each request from the prediction if it was a hit."""
        residual = self.verifier.space == "residual"
        outputs = []
        for request in requests:
            part, keys_values = request.part, work.cache.keys_values(request.part.index, layer, layer + 1)
            q_1nHD = q_BNHD[part.index : part.index + 1, : part.live]
            if request not in guessing:
                o_1nHD = work.ops.tree_attention(q_1nHD, *keys_values, part.mask)
                outputs.append(decoder.project(layer, o_1nHD) if residual else o_1nHD)
                continue
            predictor = self.predictor(part.slot)
            attention = predictor.speculate(layer, q_1nHD, *keys_values, part.mask, work.ops)
            if attention.chunk_lse_BNHC is not None:
                predictor.learn(layer, attention.chunk_lse_BNHC)
            request.measured[layer], projected = self.measure(decoder, layer, attention)
            verdict = request.measured[layer].verdict
            choices = projected or (attention.predicted_BNHD, attention.exact_BNHD)
            outputs.append(torch.where(verdict.hit_B, *choices))
        joined = padded(outputs, work.inputs.width)
        return joined if residual else decoder.project(layer, joined)

    def measure(
        self, decoder: Decoder, layer: int, attention: SpeculativeAttention
    ) -> tuple[LayerMeasurement, tuple[torch.Tensor, torch.Tensor] | None]:
        """The verdict on one request's rows; prediction and exact attention projected, if that is its space."""
        if self.verifier.space == "residual":
            predicted = decoder.project(layer, attention.predicted_BNHD)
            exact = decoder.project(layer, attention.exact_BNHD)
            squares_21n = torch.stack(
                ((predicted.float() - exact.float()).square().sum(-1), exact.float().square().sum(-1))
            )
            return self._verify(layer, squares_21n), (predicted, exact)
        squares_21n = self._sum_over_heads(torch.stack((attention.difference_sq_BN, attention.norm_sq_BN)))
        return self._verify(layer, squares_21n), None

    def _verify(self, layer: int, squares_21n: torch.Tensor) -> LayerMeasurement:
        difference_sq_1n, norm_sq_1n = squares_21n
        return LayerMeasurement(self.verifier.verify(layer, difference_sq_1n, norm_sq_1n), difference_sq_1n.sqrt())


class _RequestPass:
    """What is measured of one request in a pass."""

    def __init__(self, part: PassPart, layers: int) -> None:
        self.part = part
        self.measured: list[Any] = [None] * layers
        self.norms: list[torch.Tensor] = []
        self.states = TokenStates([], [])

    def note_norm(self, h_BNM: torch.Tensor) -> None:
        """Of its live row with the largest hidden state."""
        norm_n = torch.linalg.vector_norm(h_BNM[self.part.index, : self.part.live].float(), dim=-1)
        self.norms.append(norm_n.max())

    def first_row(self, x_BNM: torch.Tensor) -> torch.Tensor:
        """That of the root [1, 1, M]."""
        return x_BNM[self.part.index : self.part.index + 1, :1]


def padded(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Tensors [1, n, …] of several requests as one [B, N, …], with zeros for padding."""
    if len(parts) == 1 and parts[0].shape[1] == width:
        return parts[0]
    rest = (0,) * (2 * (parts[0].dim() - 2))
    return torch.cat([F.pad(part, (*rest, 0, width - part.shape[1])) for part in parts])
