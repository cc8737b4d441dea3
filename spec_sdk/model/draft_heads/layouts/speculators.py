"""Heads in the format of the speculators library: config.json names the method and the target."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.draft_heads.eagle1_spec import Eagle1Spec
from spec_sdk.model.draft_heads.eagle3_spec import Eagle3Spec
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.head_spec import read_layer
from spec_sdk.model.draft_heads.layouts.dflash import block_tensors, read_block
from spec_sdk.model.draft_heads.layouts.eagle3 import eagle3_tensors, of_one_layer, read_eagle3
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.layouts.mtp import read_speculators_mtp
from spec_sdk.model.draft_heads.layouts.peagle import read_peagle
from spec_sdk.model.draft_heads.peagle_spec import MASK_HIDDEN
from spec_sdk.model.draft_heads.published_spec import PublishedSpec

_KEY = "speculators_model_type"
_KINDS = ("eagle", "eagle3", "peagle", "dflash", "dspark", "mtp")
_OTHER_KINDS = ("dflash2", "xpress")
_DRAFT_VOCABULARY = 32000
"""The library's own default of ``draft_vocab_size``."""
_DFLASH: dict[str, Any] = {"draft_vocab_size": _DRAFT_VOCABULARY, "block_size": 8, "sample_from_anchor": False}
_BLOCK_DEFAULTS: dict[str, dict[str, Any]] = {
    "dflash": _DFLASH,
    "dspark": {
        **_DFLASH,
        "sample_from_anchor": True,
        "markov_rank": 256,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
"""What the library means where a file does not say."""


class SpeculatorsLayout(DraftHeadLayout):
    title = "speculators"

    def recognises(self, files: HeadFiles) -> bool:
        return _KEY in files.config.values

    def read(self, files: HeadFiles) -> PublishedHead:
        config, kind = files.config, files.config.text(_KEY, "")
        if kind not in _KINDS:
            advice = f"; read are {', '.join(_KINDS)}" if kind in _OTHER_KINDS else did_you_mean(kind, _KINDS)
            raise UserError(f"{config.where}: {_KEY} is '{kind}'{advice}")
        if kind == "mtp":
            return read_speculators_mtp(files, _target(config))
        body = config.section("transformer_layer_config")
        spec: PublishedSpec
        if kind in ("dflash", "dspark"):
            tensors = block_tensors(files)
            spec = read_block(body, Fields({**_BLOCK_DEFAULTS[kind], **config.values}, config.where), tensors)
        elif kind == "eagle":
            tensors = files.tensors()
            spec = _eagle(body, config, tensors)
        else:
            tensors = eagle3_tensors(files)
            options = Fields({"draft_vocab_size": _DRAFT_VOCABULARY, **config.values}, config.where)
            spec = read_peagle(body, options, tensors) if kind == "peagle" else _eagle3(body, options, tensors)
        name = files.directory.resolve().name
        return PublishedHead(f"{self.title} {kind}", spec, tensors, str(files.directory), name, _target(config))


def _eagle3(body: Fields, options: Fields, tensors: HeadTensors) -> Eagle3Spec:
    if MASK_HIDDEN in tensors:
        raise UserError(f"{options.where}: {_KEY} is 'eagle3', and there is a tensor '{MASK_HIDDEN}', as of 'peagle'")
    layer = read_layer(body, of_one_layer(tensors).names)
    # vLLM's reading of a file that does not say: the library itself writes the key
    return read_eagle3(layer, options, norm_before_residual=True)


def _eagle(body: Fields, config: Fields, tensors: HeadTensors) -> Eagle1Spec:
    if config.flag("layernorms", False):
        raise UserError(f"{config.where}: layernorms is true; only EAGLE heads without further norms are read")
    bias = config.flag("fusion_bias", False)
    if bias != ("fc.bias" in tensors):
        there = "a" if "fc.bias" in tensors else "no"
        raise UserError(f"{config.where}: fusion_bias is {str(bias).lower()}, and there is {there} tensor 'fc.bias'")
    layer = read_layer(body, tensors.names)
    return Eagle1Spec(layer, layer.vocab_size, layer.hidden_size, fc_bias=bias)


def _target(config: Fields) -> str | None:
    """The model that the head was trained for."""
    if config.get("speculators_config") is None:
        return None
    speculators = config.section("speculators_config")
    return (speculators.section("verifier").text("name_or_path", "") or None) if speculators.get("verifier") else None
