"""How blocks run in NumPy: what block runners declare, carried out on one request's rows.

Legend: n live rows, M model dim, H query heads, G KV heads, D head dim, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.block_runner import AttentionReport, BlockRunner
from tests.executors.numpy_cache import Array, NumpyCache
from tests.executors.numpy_model import NumpyModel, attention

Run = Callable[["RequestPass", Array], "tuple[Array, AttentionReport | None]"]
"""Hidden states [n, M] that enter block 0 → those that leave the last block, and what was measured."""


@dataclass
class RequestPass:
    """One request's part of a pass: where its rows go, what they see, which hidden states are recorded."""

    model: NumpyModel
    cache: NumpyCache
    slot: int
    prefix: int
    write_at: int
    seen_nS: npt.NDArray[np.bool_]
    rotation: tuple[Array, Array]
    taps: Collection[int] = ()
    hidden: dict[int, Array] = field(default_factory=dict)

    def record(self, layer: int, h_nM: Array) -> None:
        """Keep ``h_nM`` if its layer was asked for."""
        if layer in self.taps:
            self.hidden[layer] = h_nM

    def queries(self, layer: int, h_nM: Array) -> Array:
        """The queries [n, H, D] of a layer, its keys and values written."""
        q_nHD, k_nGD, v_nGD = self.model.qkv(layer, h_nM, self.rotation)
        self.cache.write(layer, self.slot, self.write_at, k_nGD, v_nGD)
        return q_nHD

    def attend(self, layer: int, q_nHD: Array, columns: npt.NDArray[np.int_] | None = None) -> Array:
        """Attention [n, H, D] over all columns that are seen, or over those of ``columns``."""
        if columns is None:
            columns = np.arange(self.seen_nS.shape[1])
        k_GSD, v_GSD = (x[layer, self.slot][:, columns] for x in (self.cache.k_LSGCD, self.cache.v_LSGCD))
        return attention(q_nHD, k_GSD, v_GSD, self.seen_nS[:, columns])


def run_of(runner: BlockRunner, layers: int) -> Run:
    """What carries out ``runner`` on a model of so many layers. Raises UserError, by name, if nothing does."""
    declaration = runner.declaration()
    name = declaration["name"]
    if name == "sequential":
        return grouped([[layer] for layer in range(layers)])
    if name == "layer_parallel":
        return grouped(declaration["groups"])
    if name == "layer_skip":
        return without_others(declaration["layers"])
    if name == "attention_speculative":
        predictor = declaration["predictor"]
        if predictor["name"] != "attention_sink":
            raise UserError(f"predictor '{predictor['name']}': backend numpy has attention_sink only")
        return SinkSpeculation(predictor["size"], AttentionRule(declaration["attention_verifier"]))
    known = ["sequential", "layer_parallel", "layer_skip", "attention_speculative"]
    raise UserError(f"runner '{name}': backend numpy cannot execute it{did_you_mean(name, known)}")


def grouped(groups: list[list[int]]) -> Run:
    """Block after block; the attention sub-layers of a group all on the hidden state that enters the group."""

    def run(request: RequestPass, h_nM: Array) -> tuple[Array, None]:
        model = request.model
        for group in groups:
            attended = [request.attend(layer, request.queries(layer, h_nM)) for layer in group]
            for layer, o_nHD in zip(group, attended, strict=True):
                h_nM = model.post_attention(layer, h_nM, model.project(layer, o_nHD))
                request.record(layer + 1, h_nM)
        return h_nM, None

    return run


def without_others(kept: list[int]) -> Run:
    """Only the blocks ``kept``, in order; what would enter another goes on as it is."""

    def run(request: RequestPass, h_nM: Array) -> tuple[Array, None]:
        model = request.model
        for layer in range(len(model.layers)):
            if layer in kept:
                a_nM = model.project(layer, request.attend(layer, request.queries(layer, h_nM)))
                h_nM = model.post_attention(layer, h_nM, a_nM)
            request.record(layer + 1, h_nM)
        return h_nM, None

    return run


class AttentionRule:
    """The verdict of an attention verifier, from its declaration."""

    def __init__(self, verifier: Mapping[str, Any]) -> None:
        self.space = verifier["space"]
        if verifier["name"] == "l2_threshold":
            given = verifier["layer_thresholds"] or {}
            by_layer = dict(enumerate(given)) if isinstance(given, list) else given
            self._threshold = lambda layer: by_layer.get(layer, verifier["threshold"])
            self.speculates = lambda layer: layer not in verifier["never"]
        elif verifier["name"] == "static":
            self._threshold = lambda layer: np.inf
            self.speculates = lambda layer: layer in verifier["layers"]
        else:
            raise UserError(f"attention_verifier '{verifier['name']}': backend numpy has l2_threshold and static only")

    def hit(self, layer: int, error_n: Array) -> bool:
        """Whether the prediction is taken, for all rows of a request."""
        return bool((error_n < self._threshold(layer)).all())


@dataclass(frozen=True)
class SinkSpeculation:
    """Attention from the first and last ``size`` committed keys, where the rule finds it close to the exact one."""

    size: int
    rule: AttentionRule

    def __call__(self, request: RequestPass, h_nM: Array) -> tuple[Array, AttentionReport]:
        model, guesses = request.model, request.prefix > 2 * self.size
        measured: list[_Measured | None] = []
        norms = [_largest_norm(h_nM)]
        for layer in range(len(model.layers)):
            q_nHD = request.queries(layer, h_nM)
            if guesses and self.rule.speculates(layer):
                a_nM, of_layer = self._speculate(request, layer, q_nHD)
                measured.append(of_layer)
            else:
                a_nM = model.project(layer, request.attend(layer, q_nHD))
                measured.append(None)
            h_nM = model.post_attention(layer, h_nM, a_nM)
            norms.append(_largest_norm(h_nM))
            request.record(layer + 1, h_nM)
        report = AttentionReport(
            hit=tuple(None if m is None else m.hit for m in measured),
            error=tuple(None if m is None else float(m.error_n.max()) for m in measured),
            row_error=tuple(None if m is None else tuple(m.error_n.tolist()) for m in measured),
            difference=tuple(None if m is None else float(m.difference_n.max()) for m in measured),
            state_norm=tuple(norms),
            space=self.rule.space,
        )
        return h_nM, report

    def _speculate(self, request: RequestPass, layer: int, q_nHD: Array) -> tuple[Array, _Measured]:
        """The attention sub-layer's output [n, M]: from the prediction if it was a hit."""
        column = np.arange(request.seen_nS.shape[1])
        few = column[(column < self.size) | (column >= request.prefix - self.size)]
        both = request.attend(layer, q_nHD, few), request.attend(layer, q_nHD)
        projected = [request.model.project(layer, o_nHD) for o_nHD in both]
        predicted, exact = projected if self.rule.space == "residual" else (o.reshape(len(o), -1) for o in both)
        difference_n = np.linalg.norm(predicted - exact, axis=-1)
        error_n = difference_n / np.linalg.norm(exact, axis=-1).clip(np.finfo(np.float32).tiny)
        hit = self.rule.hit(layer, error_n)
        return projected[0 if hit else 1], _Measured(hit, error_n, difference_n)


@dataclass(frozen=True)
class _Measured:
    hit: bool
    error_n: Array
    difference_n: Array


def _largest_norm(h_nM: Array) -> float:
    return float(np.linalg.norm(h_nM, axis=-1).max())
