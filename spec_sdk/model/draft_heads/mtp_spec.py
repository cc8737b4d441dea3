"""Prediction modules as files say them. Tensor names are the speculators format's; ``layers.0`` is the decoder layer.

Legend: V target vocabulary, M model dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import BlockWeights, TensorSource
from spec_sdk.model.draft_heads.head import DraftHead, HeadParts
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_files import HeadTensors
from spec_sdk.model.draft_heads.head_spec import DraftHeadSpec
from spec_sdk.model.draft_heads.head_weights import LAYER, HeadWeights
from spec_sdk.model.draft_heads.mtp import GatedMtpHead, LatentMtpHead, MtpHead, MtpVariant
from spec_sdk.model.load_decoder import load_blocks
from spec_sdk.model.packed_weights import packed_in, part_of
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.text_settings import TEXTS_OF
from spec_sdk.model.weight_table import Shape
from spec_sdk.ops.quantized import QuantizedMatrix

_MODEL = "model."
"""What a target has before the names of its layers."""


@dataclass(frozen=True)
class MtpSpec(DraftHeadSpec):
    """A module whose layer is one of the target's family. ``names``: its tensors."""

    method: ClassVar[str] = "mtp"
    variant: MtpVariant = MtpVariant()
    names: frozenset[str] = frozenset()

    @staticmethod
    def of(target: ModelConfig, tensors: HeadTensors, variant: MtpVariant) -> MtpSpec:
        """The module with these tensors beside a target of this configuration.

        It sees all tokens, and has a mixture of experts if its tensors are of one.
        """
        config, experts = target.of_layers([target.num_layers - 1]), target.experts
        if experts is not None:
            sparse = any(".experts." in name for name in tensors.names)
            experts = replace(experts, layers=(0,) if sparse else ())
        # a module of a checkpoint that holds more than a text model lies beside it
        text = TEXTS_OF.get(config.architecture, (config.architecture,))[0]
        config = replace(config, windows=(), experts=experts, recurrent=None, architecture=text)
        return MtpSpec(config, config.vocab_size, config.hidden_size, variant, frozenset(tensors.names))

    def taps(self, target_layers: int) -> tuple[int, ...]:
        return (target_layers,)

    def with_taps(self, taps: tuple[int, ...]) -> DraftHeadSpec:
        raise UserError("drafter.target_layers: a prediction module reads the last layer; leave the option out")

    def as_chosen(self, choices: HeadChoices) -> DraftHeadSpec:
        normalized = self.variant.reads_normalized if choices.state == "auto" else choices.state == "after_norm"
        spec = replace(self, variant=replace(self.variant, reads_normalized=normalized))
        return DraftHeadSpec.as_chosen(spec, choices)

    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        M, V = self.config.hidden_size, self.config.vocab_size
        required: dict[str, Shape] = {
            "input_proj.weight": (M, 2 * M),
            **{f"{part}_layernorm.weight": (M,) for part in ("token", "hidden", "final")},
        }
        table = weights_of(self.config)
        for name, shape in table.shapes.items():
            if name.startswith(f"{_MODEL}{LAYER}."):
                # matrices of one input are published as one, and made from GGUF files each for itself
                apart = name.removeprefix(_MODEL) in self.names
                stored = None if apart else next((each for each in table.packed(name) if each.packing.published), None)
                name, shape = (name, shape) if stored is None else (stored.name, stored.shape)
                required[name.removeprefix(_MODEL)] = shape
        return required, {"embed_tokens.weight": (V, M), "lm_head.weight": (V, M)}

    def blocks(self, weights: HeadWeights) -> tuple[BlockWeights, ...]:
        source = _OneLayer(weights, self.config)
        return tuple(load_blocks(source, weights.device, weights.dtype, weights.ops))

    def build(self, weights: HeadWeights, parts: HeadParts, target: TargetEnds) -> DraftHead:
        # its norms are stored as the target's are
        less = 1.0 if weights_of(self.config).row("final_norm").gain_minus_one else 0.0
        token, hidden, final = (f"{name}_layernorm.weight" for name in ("token", "hidden", "final"))
        kind = GatedMtpHead if self.config.attention_gate else MtpHead
        if self.config.latent is not None:
            kind = LatentMtpHead
        return kind(
            parts,
            weights.projection("input_proj"),
            weights.read(token) + less,
            weights.read(hidden) + less,
            weights.read(final) + less,
            target,
            self.variant,
        )


class _OneLayer(TensorSource):
    """A module's decoder layer as a model of the target's family that has no other."""

    def __init__(self, weights: HeadWeights, config: ModelConfig) -> None:
        self.config = config
        self._weights, self._tensors, self._table = weights, weights.tensors, weights_of(config)
        self._there = frozenset(_MODEL + name for name in self._tensors.names if name.startswith(f"{LAYER}."))
        self._packed = packed_in(self._there, self._table)

    def names(self) -> frozenset[str]:
        return self._there | self._packed.keys()

    def tensor(self, name: str) -> torch.Tensor:
        within = self._packed.get(name)
        if within is None:
            return self._tensors.tensor(name.removeprefix(_MODEL))
        stored = self._tensors.tensor(within.name.removeprefix(_MODEL))
        return part_of(stored, name, within.packing, self._table)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return None if name in self._packed else self._weights.in_few_bits(name.removeprefix(_MODEL))
