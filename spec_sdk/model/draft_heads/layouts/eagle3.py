"""EAGLE-3 heads as SafeAILab publishes them, and those that SpecForge exports under the same tensor names."""

from __future__ import annotations

import re

from spec_sdk.errors import UserError
from spec_sdk.model.borrowed_weights import KEY as WEIGHTS_OF_TARGET
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.draft_heads.eagle3 import Eagle3Variant
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec, FcNorm
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.head_spec import read_layer
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.tapped_layers import flag, published_taps

_SGLANG_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


class Eagle3Layout(DraftHeadLayout):
    title = "EAGLE-3"

    def recognises(self, files: HeadFiles) -> bool:
        return any(name in files.names for name in ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"))

    def read(self, files: HeadFiles) -> PublishedHead:
        tensors = of_one_layer(eagle3_tensors(files))
        layer = read_layer(files.config, tensors.names)
        spec = read_eagle3(layer, files.config, norm_before_residual=False)
        return PublishedHead(self.title, spec, tensors, str(files.directory), files.directory.resolve().name)


def eagle3_tensors(files: HeadFiles) -> HeadTensors:
    """The tensors of an EAGLE-3 head under one set of names."""
    renamed = {}
    for stored in files.names:
        if stored.startswith("midlayer."):
            renamed["layers.0." + stored.removeprefix("midlayer.")] = stored
        elif stored.removesuffix(".weight") in _SGLANG_NORMS:
            renamed[_SGLANG_NORMS[stored.removesuffix(".weight")] + ".weight"] = stored
    return files.tensors(renamed)


def of_one_layer(tensors: HeadTensors) -> HeadTensors:
    """These tensors. Raises UserError for several layers: the programs that read them differ in the later norms."""
    later = sorted(name for name in tensors.names if re.match(r"layers\.[1-9]", name))
    if later:
        raise UserError(f"{tensors.where}: has more than one layer ('{later[0]}'); only heads of one are read")
    return tensors


def read_eagle3(layer: ModelConfig, options: Fields, norm_before_residual: bool) -> Eagle3Spec:
    """A head with such a layer, of which ``options`` say everything else.

    ``norm_before_residual``: what is meant where it is not said. Raises UserError for options that exclude each other.
    """
    if not flag(options, "use_aux_hidden_state", True):
        raise UserError(f"{options.where}: use_aux_hidden_state is false; only heads that read several layers are read")
    taps, fc_norm = published_taps(options), _fc_norm(options)
    states = options.get("num_aux_hidden_states")
    if taps.layers is not None and states is not None and options.size("num_aux_hidden_states") != len(taps.layers):
        raise UserError(f"{options.where}: num_aux_hidden_states is {states}, and {len(taps.layers)} layers are listed")
    return Eagle3Spec(
        config=layer,
        draft_vocabulary=options.size("draft_vocab_size", layer.vocab_size),
        target_hidden_size=options.size("target_hidden_size", layer.hidden_size),
        published_taps=taps,
        fc_norm=fc_norm,
        variant=Eagle3Variant(
            norm_before_residual=options.flag("norm_before_residual", norm_before_residual),
            norm_output=options.flag("norm_output", False),
            logit_scale=options.positive("logit_scale", 1.0),
        ),
        borrows_head=_borrows_head(options),
    )


def _borrows_head(options: Fields) -> bool:
    """Whether config.json leaves the output rows to the target, as it does for a draft model."""
    listed = options.get(WEIGHTS_OF_TARGET) or []
    if listed not in ([], ["head"]):
        raise UserError(f"{options.where}: {WEIGHTS_OF_TARGET} is {listed!r}; a head can leave ['head'] to its target")
    return bool(listed)


def _fc_norm(options: Fields) -> FcNorm:
    together, each = flag(options, "norm_before_fc"), options.flag("fc_norm", options.flag("use_aux_norm", False))
    if together and each:
        raise UserError(f"{options.where}: norm_before_fc and fc_norm are both true, and exclude each other")
    return "together" if together else "each" if each else "none"
