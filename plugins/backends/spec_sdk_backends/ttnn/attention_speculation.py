"""Attention-level speculation on one TT-NN device (ALSpec, Alg. 1): predict, verify, go on with one of the two.

Both attentions are computed on one device, as the torch runner does, and the verdict chooses between them there: the
host reads verdicts after the last layer.

Legend: R rows of the pass, n live rows of a request, M model dim, H query heads, E padded head dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import AttentionReport
from spec_sdk.ops import Ends
from spec_sdk.ops.types import Space, relative_error
from spec_sdk_backends.ttnn.forward import Band, TtnnPass
from spec_sdk_backends.ttnn.operations import DeviceTensor
from spec_sdk_backends.ttnn.simulated import SimulatedOperations
from spec_sdk_backends.ttnn.speculative_decode import GuessingPart, Heads, SpeculativeDecode, Verdict, Window


@dataclass(frozen=True)
class SpeculationPlan:
    """What a runner declares: the keys that a prediction reads, and per layer the threshold λ, None: no speculation."""

    ends: Ends
    thresholds: Sequence[float | None]
    space: Space

    @staticmethod
    def of(declaration: Mapping[str, Any], layers: int) -> SpeculationPlan:
        """Of a model of so many layers. Raises UserError for a predictor or verifier that cannot be carried out."""
        predictor, verifier = declaration["predictor"], declaration["attention_verifier"]
        if predictor["name"] != "attention_sink":
            raise UserError(
                f"predictor '{predictor['name']}': backend ttnn has attention_sink only; use it, or backend=cpu"
            )
        first, last = (predictor["size"] if predictor[end] is None else predictor[end] for end in ("first", "last"))
        return SpeculationPlan(Ends(first, last), _thresholds(verifier, layers), verifier["space"])


def _thresholds(verifier: Mapping[str, Any], layers: int) -> list[float | None]:
    if verifier["name"] == "l2_threshold":
        given = verifier["layer_thresholds"] or {}
        by_layer = dict(enumerate(given)) if isinstance(given, list) else given
        never = verifier["never"]
        return [None if i in never else float(by_layer.get(i, verifier["threshold"])) for i in range(layers)]
    if verifier["name"] == "static":
        return [float("inf") if i in verifier["layers"] else None for i in range(layers)]
    raise UserError(
        f"attention_verifier '{verifier['name']}': backend ttnn has l2_threshold and static only; use one of them, "
        "or backend=cpu"
    )


class LayerSpeculation:
    """The operations of a layer for one request's rows, which one device or two carry out.

    ``work`` is a pass on a device, ``band`` the request's rows in it, ``part`` what they see.
    """

    def __init__(self, plan: SpeculationPlan, decode: SpeculativeDecode, heads: Heads) -> None:
        self.plan, self.decode, self.heads = plan, decode, heads

    def partial(self, work: TtnnPass, layer: int, band: Band, part: GuessingPart, q_RHE: DeviceTensor) -> Window:
        """The prediction from both ends of the keys, q of this request's rows only."""
        return self.decode.partial(q_RHE, *self._keys(work, layer, band), part, self.heads)

    def finish(
        self, work: TtnnPass, layer: int, band: Band, part: GuessingPart, q_RHE: DeviceTensor, window: Window
    ) -> tuple[DeviceTensor, DeviceTensor, Verdict]:
        """The other keys, and the verdict: prediction and exact attention in the space of the verdict, and it."""
        exact = self.decode.combine(q_RHE, *self._keys(work, layer, band), part, window, self.heads)
        predicted, threshold = window.predicted, self.plan.thresholds[layer]
        assert threshold is not None, "this layer does not speculate"
        if self.plan.space == "residual":
            predicted = work.model.project(layer, predicted)
            exact = self.decode.compare(predicted, work.model.project(layer, exact.o))
        return predicted, exact.o, self.decode.verify(exact, part, threshold)

    def part(self, work: TtnnPass, band: Band) -> GuessingPart | None:
        """What a request's rows see; None where its prefix is so short that nothing is guessed."""
        mask = band.part.mask
        if mask.prefix <= self.plan.ends.keys:
            return None
        return self.decode.part(mask.prefix, mask.visible_NT(), self.plan.ends)

    def _keys(self, work: TtnnPass, layer: int, band: Band) -> tuple[DeviceTensor, DeviceTensor]:
        slot = band.part.slot
        return work.cache.k[slot][layer], work.cache.v[slot][layer]


def layer_speculation(plan: SpeculationPlan, work: TtnnPass) -> LayerSpeculation:
    """The operations for the model of a pass. Raises UserError where they are not to be had."""
    config, operations = work.model.config, work.model.operations
    if not isinstance(operations, SimulatedOperations):
        raise UserError(
            f"predictor: {operations.describe()} has no kernels for speculation on attention, which run on the "
            "simulator only; use backend.simulate=true, or predictor=none"
        )
    decode = SpeculativeDecode(operations.dtype)
    heads = decode.heads(config.num_heads, config.num_kv_heads, config.head_dim**-0.5)
    return LayerSpeculation(plan, decode, heads)


class AttentionSpeculation:
    """Carries out a plan on passes: goes on with the prediction where every live row of a request is close enough."""

    def __init__(self, plan: SpeculationPlan) -> None:
        self.plan = plan

    def __call__(self, work: TtnnPass, h_RM: DeviceTensor) -> tuple[DeviceTensor, Sequence[AttentionReport]]:
        speculation = layer_speculation(self.plan, work)
        parts = {band.part.index: part for band in work.bands if (part := speculation.part(work, band)) is not None}
        verdicts: dict[int, dict[int, Verdict]] = {band.part.index: {} for band in work.bands}
        for layer, threshold in enumerate(self.plan.thresholds):
            q_RHE = work.queries(layer, h_RM)
            if parts and threshold is not None:
                a_RM = self._speculate(speculation, work, layer, q_RHE, parts, verdicts)
            else:
                a_RM = work.model.project(layer, work.attend(layer, q_RHE))
            h_RM = work.model.post_attention(layer, h_RM, a_RM)
            work.record(layer + 1, h_RM)
        return h_RM, [report_of(self.plan, work, band, verdicts[band.part.index]) for band in work.bands]

    def _speculate(
        self,
        speculation: LayerSpeculation,
        work: TtnnPass,
        layer: int,
        q_RHE: DeviceTensor,
        parts: Mapping[int, GuessingPart],
        verdicts: Mapping[int, dict[int, Verdict]],
    ) -> DeviceTensor:
        """The attention sub-layer's output [R, M]: of each request from the prediction if it was a hit."""
        decode, residual = speculation.decode, self.plan.space == "residual"
        others = [band for band in work.bands if band.part.index not in parts]
        out = work.attend(layer, q_RHE, others) if others else decode.empty(*q_RHE.shape)
        if residual:
            out = work.model.project(layer, out)
        for band in work.bands:
            part = parts.get(band.part.index)
            if part is None:
                continue
            q_own = decode.rows(q_RHE, band.first, band.end)
            window = speculation.partial(work, layer, band, part, q_own)
            predicted, exact, verdict = speculation.finish(work, layer, band, part, q_own, window)
            decode.choose(predicted, exact, verdict, decode.rows(out, band.first, band.end))
            verdicts[band.part.index][layer] = verdict
        return out if residual else work.model.project(layer, out)


def report_of(plan: SpeculationPlan, work: TtnnPass, band: Band, verdicts: Mapping[int, Verdict]) -> AttentionReport:
    """What was measured of one request, by layer. Waits for the device."""
    ops, live = work.model.operations, slice(band.part.live)

    def of_layer(layer: int) -> tuple[bool, torch.Tensor, torch.Tensor] | None:
        if layer not in verdicts:
            return None
        verdict = verdicts[layer]
        hit = ops.to_host(verdict.misses, slice(1), 1).item() == 0
        difference_sq_n, norm_sq_n = (ops.to_host(x, live, 1)[:, 0] for x in (verdict.difference_sq, verdict.norm_sq))
        return hit, relative_error(difference_sq_n, norm_sq_n), difference_sq_n.sqrt()

    layers = [of_layer(layer) for layer in range(len(plan.thresholds))]
    return AttentionReport(
        hit=tuple(None if m is None else m[0] for m in layers),
        error=tuple(None if m is None else float(m[1].max()) for m in layers),
        row_error=tuple(None if m is None else tuple(m[1].tolist()) for m in layers),
        difference=tuple(None if m is None else float(m[2].max()) for m in layers),
        state_norm=(),
        space=plan.space,
    )


def attention_speculative(declaration: Mapping[str, Any], layers: int) -> AttentionSpeculation:
    """Predicted attention where it is verified, exact attention elsewhere."""
    return AttentionSpeculation(SpeculationPlan.of(declaration, layers))
