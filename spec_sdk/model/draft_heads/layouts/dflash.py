"""Heads that draft a block: DFlash as z-lab publishes it, DSpark as DeepSpec does; SpecForge exports both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.draft_heads.block_head import BlockForm
from spec_sdk.model.draft_heads.block_spec import BlockSpec, DSparkSpec, MarkovKind
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.head_spec import read_layers
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.layouts.mask_token import mask_token
from spec_sdk.model.draft_heads.tapped_layers import block_taps
from spec_sdk.model.llama_like import windows_by_type

_RENAMED = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm.", "midlayer.": "layers.0."}
_OTHER_METHODS = {
    "candidate_selector.": "DFlash2",
    "lilicorr.": "LiLiCorr",
    "xpress_head.": "XPress",
    "prefix_gru.": "Domino",
}
"""How the names of tensors begin that only heads of these methods have."""
_NOT_COMPUTED = {"use_swa": False, "attention_sink_bias": False, "attention_value_scale": 1.0, "projector_type": ""}
"""Keys of other variants, and what they say where they mean nothing."""
_MARKOV_KINDS = ("vanilla", "gated", "rnn")
_BLOCK_SIZE = 16
"""z-lab's own where config.json does not say."""


class DFlashLayout(DraftHeadLayout):
    title = "DFlash"

    def recognises(self, files: HeadFiles) -> bool:
        tensors = _renamed(files)
        # DeepSpec's EAGLE-3 heads have the same names, and another input of the layer
        eagle = any("eagle" in name.lower() for name in files.architectures)
        names = ("fc.weight", "hidden_norm.weight", "layers.0.input_layernorm.weight")
        return all(name in tensors for name in names) and not eagle

    def read(self, files: HeadFiles) -> PublishedHead:
        tensors, config = block_tensors(files), files.config
        spec = read_block(config, config, tensors)
        title = "DSpark" if isinstance(spec, DSparkSpec) else self.title
        return PublishedHead(title, spec, tensors, str(files.directory), files.directory.resolve().name)


def block_tensors(files: HeadFiles) -> HeadTensors:
    """The tensors under one set of names. Raises UserError for those of another method, by its name."""
    for name in files.names:
        for start, method in _OTHER_METHODS.items():
            if name.startswith(start):
                raise UserError(f"{files.store.where}: is a head of {method} ('{name}'); DFlash and DSpark are read")
    return _renamed(files)


def read_block(body: Fields, config: Fields, tensors: HeadTensors) -> BlockSpec:
    """A head whose layers ``body`` describes, and everything else ``config``, at the top or in ``dflash_config``.

    Raises UserError for what is not computed, and for a config.json that says another thing than the tensors.
    """
    nested = None if config.get("dflash_config") is None else config.section("dflash_config")
    options = config if nested is None else Fields({**config.values, **nested.values}, config.where)
    _refuse_unsupported(options)
    layers = _read_layers(body, options, tensors)
    is_dspark = _is_dspark(options, tensors)
    size = options.size("block_size", options.size("dspark_block_size", _BLOCK_SIZE))
    form = BlockForm(
        size=size,
        mask_token=mask_token(options, ("mask_token_id", "dspark_noise_token_id"), layers.vocab_size),
        from_anchor=options.flag("sample_from_anchor", is_dspark),
        causal=_causal(options, layers),
    )
    if form.drafts < 1:
        raise UserError(
            f"{options.where}: block_size is {size}, and without sample_from_anchor the anchor is all of it"
        )
    for layer, window in enumerate(layers.windows):
        if window is not None and window < size and not form.causal[layer]:
            raise UserError(f"{options.where}: sliding_window is {window}, less than the block of {size} rows")
    common: dict[str, Any] = {
        "config": layers,
        "form": form,
        "draft_vocabulary": options.size("draft_vocab_size", layers.vocab_size),
        "target_hidden_size": options.size("target_hidden_size", layers.hidden_size),
        "published_taps": block_taps(config, nested, layers.num_layers),
        "target_layers": None if options.get("num_target_layers") is None else options.size("num_target_layers"),
        "logit_scale": options.positive("logit_scale", 1.0) * options.positive("output_multiplier", 1.0),
    }
    return _dspark(options, common) if is_dspark else BlockSpec(**common)


def _dspark(options: Fields, common: dict[str, Any]) -> DSparkSpec:
    rank = (
        0 if options.get("markov_rank") == 0 else options.size("markov_rank", options.size("dspark_markov_rank", 256))
    )
    kind = options.text("markov_head_type", options.text("dspark_markov_head_type", "vanilla"))
    if kind not in _MARKOV_KINDS:
        raise UserError(f"{options.where}: markov_head_type is '{kind}'{did_you_mean(kind, _MARKOV_KINDS)}")
    confident = options.flag("enable_confidence_head", False)
    reads_token = options.flag("confidence_head_with_markov", False) and confident
    if reads_token and not rank:
        raise UserError(f"{options.where}: confidence_head_with_markov is true, and markov_rank is 0")
    return DSparkSpec(
        **common,
        markov_rank=rank,
        markov_kind=cast(MarkovKind, kind),
        confidence=confident,
        confidence_reads_token=reads_token,
    )


def _is_dspark(options: Fields, tensors: HeadTensors) -> bool:
    named = options.get("architectures")
    names = [str(name).lower() for name in named] if isinstance(named, list) else []
    has_parts = any(name.startswith(("markov_head.", "confidence_head.")) for name in tensors.names)
    return has_parts or options.get("markov_rank") is not None or any("dspark" in name for name in names)


def _read_layers(body: Fields, options: Fields, tensors: HeadTensors) -> ModelConfig:
    """The decoder layers; heads are as wide as the norm of Q where their width is not said."""
    values, norm = dict(body.values), "layers.0.self_attn.q_norm.weight"
    if values.get("head_dim") is None and norm in tensors:
        values["head_dim"] = tensors.shape(norm)[0]
    body = Fields(values, body.where)
    kinds = body.get("layer_types")
    slides = isinstance(kinds, list) and "sliding_attention" in kinds
    if slides and not body.flag("use_sliding_window", True):
        raise UserError(f"{body.where}: layer_types has sliding_attention, and use_sliding_window is false")
    window = body.size("sliding_window") if slides else None
    windows = windows_by_type(body, window, [False] * body.size("num_hidden_layers", 1))
    config = read_layers(body, tensors.names, windows, computes=("final_logit_softcapping",))
    cap = options.number("final_logit_softcapping", 0.0)
    return replace(
        config, logit_softcap=cap if cap > 0 else None, embedding_scale=options.positive("input_embedding_scale", 1.0)
    )


def _causal(options: Fields, layers: ModelConfig) -> tuple[bool, ...]:
    """Which layers hide a block's later rows: those with a window, unless config.json says it of all layers."""
    said = next((options.flag(key, False) for key in ("is_causal", "causal") if options.get(key) is not None), None)
    slides = not options.flag("sliding_window_non_causal", False)
    windows = layers.windows or (None,) * layers.num_layers
    return tuple((window is not None and slides) if said is None else said for window in windows)


def _refuse_unsupported(options: Fields) -> None:
    for key, nothing in _NOT_COMPUTED.items():
        if options.get(key) not in (None, nothing):
            raise UserError(f"{options.where}: {key} ({options.get(key)!r}) is not supported")
    if not options.flag("is_neox_style", True):
        raise UserError(f"{options.where}: is_neox_style is false; only rotary positions in halves are computed")


def _renamed(files: HeadFiles) -> HeadTensors:
    renamed = {}
    for stored in files.names:
        for theirs, ours in _RENAMED.items():
            if stored.startswith(theirs):
                renamed[ours + stored.removeprefix(theirs)] = stored
    return files.tensors(renamed)
