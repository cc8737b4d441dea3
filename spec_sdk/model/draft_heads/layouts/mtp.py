"""Prediction modules among the tensors of their targets, and those that the speculators library takes out of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import families, read_config
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.head_weights import LAYER
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.mtp import MtpVariant
from spec_sdk.model.draft_heads.mtp_spec import MtpSpec

_OWN_PARTS = {name: name for name in ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")}


@dataclass(frozen=True)
class MtpNaming:
    """How a module's tensors are named, and what it computes.

    ``pattern``: matches their names; its groups are the module's number, if the name has one, and what follows.
    ``after_target``: modules are numbered as layers of the target behind the last one. ``parts``: what is not of the
    decoder layer, in these words → in those of the speculators format.
    """

    title: str
    pattern: str
    parts: Mapping[str, str]
    variant: MtpVariant
    after_target: bool = False

    def split(self, stored: str) -> tuple[int, str] | None:
        """The number that a tensor's name has, and the name in the speculators format; None if it is of no module."""
        match = re.fullmatch(self.pattern, stored)
        if match is None:
            return None
        part, _, kind = match[2].rpartition(".")
        return int(match[1] or 0), f"{self.parts[part]}.{kind}" if part in self.parts else f"{LAYER}.{match[2]}"


DEEPSEEK = MtpNaming(
    "DeepSeek MTP",
    r"model\.layers\.(\d+)\.(.+)",
    {
        "eh_proj": "input_proj",
        "enorm": "token_layernorm",
        "hnorm": "hidden_layernorm",
        "shared_head.norm": "final_layernorm",
        "shared_head.head": "lm_head",
        "embed_tokens": "embed_tokens",
    },
    MtpVariant(feeds_normalized=False, first_embedding_is_zero=True),
    after_target=True,
)
QWEN = MtpNaming(
    "Qwen MTP",
    r"mtp\.(?:layers\.(\d+)\.)?(.+)",
    {
        "fc": "input_proj",
        "pre_fc_norm_embedding": "token_layernorm",
        "pre_fc_norm_hidden": "hidden_layernorm",
        "norm": "final_layernorm",
        "lm_head": "lm_head",
        "embed_tokens": "embed_tokens",
    },
    MtpVariant(),
)
MIMO = MtpNaming(
    "MiMo MTP",
    r"model\.mtp_layers\.(\d+)\.(.+)",
    _OWN_PARTS,
    MtpVariant(state_first=True, first_embedding_is_zero=True),
)
SPECULATORS = MtpNaming("speculators mtp", r"mtp_layers\.(\d+)\.(.+)", _OWN_PARTS, MtpVariant(reads_normalized=False))


class MtpLayout(DraftHeadLayout):
    """A target's own checkpoint, of which everything but the module is left where it is."""

    title = "MTP"

    def recognises(self, files: HeadFiles) -> bool:
        return _naming(files) is not None

    def read(self, files: HeadFiles) -> PublishedHead:
        naming = _naming(files)
        assert naming is not None
        return _published(naming, files, files.config, files.config, None)


def read_speculators_mtp(files: HeadFiles, target: str | None) -> PublishedHead:
    """A directory of the speculators library whose type is mtp."""
    return _published(SPECULATORS, files, files.config.section("transformer_layer_config"), files.config, target)


def _naming(files: HeadFiles) -> MtpNaming | None:
    """How the module among these tensors is named; None if there is none."""
    for naming in (DEEPSEEK, QWEN, MIMO):
        for stored in files.names:
            if (found := naming.split(stored)) is not None and found[1] == "input_proj.weight":
                return naming
    return None


def _published(
    naming: MtpNaming, files: HeadFiles, model: Fields, options: Fields, target: str | None
) -> PublishedHead:
    config = _target_config(model)
    first = config.num_layers if naming.after_target else 0
    modules: dict[int, dict[str, str]] = {}
    for stored in files.names:
        found = naming.split(stored)
        if found is not None and found[0] >= first:
            modules.setdefault(found[0], {})[found[1]] = stored
    said = options.number("num_nextn_predict_layers", 1)
    if list(modules) != [first] or said != 1:
        raise UserError(
            f"{files.store.where}: has {len(modules)} prediction modules, and num_nextn_predict_layers is {said:g}; "
            "only a single one is read"
        )
    stored_as = modules[first]
    for copy, names in (
        ("embed_tokens.weight", ["model.embed_tokens.weight"]),
        ("lm_head.weight", ["lm_head.weight", "model.embed_tokens.weight"]),
    ):
        if copy in stored_as and _same(files, stored_as[copy], names):
            # what is the target's already would be held twice
            del stored_as[copy]
    tensors = HeadTensors(files.store, stored_as)
    spec = MtpSpec.of(config, tensors, naming.variant)
    name = files.directory.resolve().name
    return PublishedHead(naming.title, spec, tensors, str(files.directory), name, target)


def _target_config(model: Fields) -> ModelConfig:
    """The configuration of the model that the module is made for. Raises UserError for one that cannot be run, or that
    does more around its layers than modules are known to do.
    """
    kind = model.text("model_type", "")
    known = sorted(name for family in families() for name in family.model_types)
    if kind not in known:
        raise UserError(
            f"{model.where}: has a prediction module of a '{kind}' model, which cannot be run (these can: "
            f"{', '.join(known)})"
        )
    config = read_config(model.values, model.where)
    if config.encoder is not None or config.output_norms or config.embedding_scale != 1.0 or config.prefix:
        raise UserError(f"{model.where}: prediction modules of '{kind}' models are not known, and none is read")
    return config


def _same(files: HeadFiles, stored: str, others: list[str]) -> bool:
    """Whether a tensor is the first of these that there is."""
    other = next((name for name in others if name in files.names), None)
    if other is None or files.store.shapes[stored] != files.store.shapes[other]:
        return False
    return torch.equal(files.store.tensor(stored), files.store.tensor(other))
