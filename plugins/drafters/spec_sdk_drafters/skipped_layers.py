"""The runner that leaves layers out, and which ones.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import BlockRunner, Guarantee, option
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.attention_stack import runs
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.ranks import ALONE, Ranks

AUTO = "auto"


@dataclass
class LayerSkipConfig:
    """Which layers are left out: one of the three ways to say so."""

    skip: Any = option(
        AUTO,
        "the layers that are left out, such as [3, 4, 5, 10], counted from 0; auto: evenly spaced ones, the first and "
        "the last layer kept",
    )
    layers: int = option(0, "how many layers skip=auto keeps", minimum=0, means={0: "two thirds of them"})
    exit: int = option(
        0, "keep the first so many layers and leave out all others (early exit)", minimum=0, means={0: "no early exit"}
    )


class LayerSkipRunner(BlockRunner):
    """Leaves some layers out: the hidden state that would enter one goes on as it is (Draft & Verify, §3; LayerSkip).

    The final norm and the output head are the model's own. K and V are written for the layers that run.
    """

    name = "layer_skip"
    Config = LayerSkipConfig
    config: LayerSkipConfig
    guarantee: Guarantee = "relaxed"
    # those of the layers left out are missing
    keeps_kv = False
    capturable = True

    def __init__(self, config: LayerSkipConfig) -> None:
        super().__init__(config)
        self.kept: list[int] = []

    def prepare(self, layers: int, ranks: Ranks = ALONE) -> None:
        self.kept = kept_layers(self.config, layers)

    def share_kv(self, kv_sources: Sequence[int]) -> None:
        """What layers that run attend to has to be written: those that write it run too, unless ``skip`` lists them."""
        for layer in self.kept if kv_sources else ():
            source = kv_sources[layer]
            if source not in self.kept and self.config.skip != AUTO:
                raise UserError(f"drafter.skip: layer {layer} attends to K and V of layer {source}; keep that one too")
        self.kept = sorted({*self.kept, *(kv_sources[layer] for layer in self.kept if kv_sources)})

    def declaration(self) -> Mapping[str, Any]:
        """``layers``: those that run, in order."""
        return {"name": self.name, "layers": self.kept}

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        done = 0
        for first, end in [*runs(self.kept), (decoder.layers, decoder.layers)]:
            for skipped in range(done, first):
                work.record(skipped + 1, h_BNM)
            if first < end:
                h_BNM = SequentialRunner(first=first, end=end).run(decoder, h_BNM, work)
            done = end
        return h_BNM


def kept_layers(config: LayerSkipConfig, layers: int) -> list[int]:
    """The layers that run, of a model of so many. Raises UserError for options that do not fit it or each other."""
    given = {"skip": config.skip != AUTO, "layers": config.layers != 0, "exit": config.exit != 0}
    chosen = [f"drafter.{name}" for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: each says which layers are left out; give one of them")
    if config.exit:
        if config.exit > layers:
            raise UserError(f"drafter.exit: {config.exit} must be at most {layers}, the layers of the model")
        return list(range(config.exit))
    if config.skip == AUTO:
        return evenly_kept(config.layers or max(min(2, layers), round(2 * layers / 3)), layers)
    return all_but(config.skip, layers)


def evenly_kept(kept: int, layers: int) -> list[int]:
    """``kept`` of so many layers, the first and the last among them, those left out evenly spaced between.

    Raises UserError for a number that there is no such choice of.

    >>> evenly_kept(5, 8)
    [0, 1, 3, 5, 7]
    """
    least = min(2, layers)
    if not least <= kept <= layers:
        raise UserError(
            f"drafter.layers: {kept} must be from {least} to {layers}, the layers of the model; the first and the last "
            "are kept (drafter.exit keeps the first ones alone)"
        )
    left_out, middle = layers - kept, layers - 2
    skipped = {1 + (2 * i + 1) * middle // (2 * left_out) for i in range(left_out)}
    return [layer for layer in range(layers) if layer not in skipped]


def all_but(skip: object, layers: int) -> list[int]:
    """All layers but those listed. Raises UserError for what is no list of different layers of the model, or all."""
    if isinstance(skip, str):
        raise UserError(f"drafter.skip: {skip!r} is no choice of layers{did_you_mean(skip, [AUTO])}")
    if not isinstance(skip, Sequence) or not all(isinstance(i, int) and not isinstance(i, bool) for i in skip):
        raise UserError(f"drafter.skip: {skip!r} must be '{AUTO}' or a list of layers such as [3, 4, 5]")
    if len(set(skip)) < len(skip) or not all(0 <= layer < layers for layer in skip):
        raise UserError(f"drafter.skip: {list(skip)} must be different layers between 0 and {layers - 1}")
    if len(skip) == layers:
        raise UserError(f"drafter.skip: all {layers} layers are left out; keep one at least")
    return [layer for layer in range(layers) if layer not in skip]
