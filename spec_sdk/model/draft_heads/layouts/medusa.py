"""Medusa heads: as FasterDecoding publishes them, and as older versions of vLLM read them."""

from __future__ import annotations

import re

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead
from spec_sdk.model.draft_heads.medusa_spec import SHARED_HEAD, TOKEN_MAP, MedusaSpec

_PREFIX = "(?:medusa_heads?\\.)?"
_BLOCK = re.compile(_PREFIX + r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_OUTPUT = re.compile(_PREFIX + r"(\d+)\.(\d+)\.weight")
_VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")


class MedusaLayout(DraftHeadLayout):
    """The tensors are ``{head}.{block}.linear.weight`` and, one number after the blocks, ``{head}.{blocks}.weight``."""

    title = "Medusa"

    def recognises(self, files: HeadFiles) -> bool:
        return any(_BLOCK.fullmatch(name) for name in files.names)

    def read(self, files: HeadFiles) -> PublishedHead:
        config, renamed = files.config, dict[str, str]()
        layers = config.size("medusa_num_layers", 1)
        for stored in files.names:
            if block := _BLOCK.fullmatch(stored):
                renamed[f"blocks.{block[1]}.layers.{block[2]}.{block[3]}"] = stored
            elif (output := _OUTPUT.fullmatch(stored)) and int(output[2]) == layers:
                renamed[f"lm_heads.{output[1]}.weight"] = stored
        tensors = files.tensors(renamed)
        heads = _counted(files, tensors, "medusa_num_layers", layers)
        said = config.size("medusa_num_heads", heads)
        # some files say 2 and hold 5, and their authors' own program reads 5
        if said > heads:
            raise UserError(f"{config.where}: medusa_num_heads is {said}, and {heads} heads are stored")
        hidden_size, rows = _sizes(tensors, "lm_heads.0.weight", files)
        spec = MedusaSpec(heads, layers, bias=True, target_hidden_size=hidden_size, vocabulary=rows, rows=rows)
        target = config.text("base_model_name_or_path", "") or None
        return _published(self.title, spec, tensors, files, target)


class VllmMedusaLayout(DraftHeadLayout):
    """The tensors are ``blocks.{head}.layers.{block}.weight`` and ``lm_heads.{head}.weight``."""

    title = "Medusa of vLLM"

    def recognises(self, files: HeadFiles) -> bool:
        return any(_VLLM_BLOCK.fullmatch(name.removeprefix("medusa_heads.")) for name in files.names)

    def read(self, files: HeadFiles) -> PublishedHead:
        config = files.config
        shared, layers = config.flag("original_lm_head", False), config.size("num_hidden_layers", 1)
        renamed = {name.removeprefix("medusa_heads."): name for name in files.names}
        if shared and "lm_heads.0.weight" in renamed:
            renamed[f"{SHARED_HEAD}.weight"] = renamed.pop("lm_heads.0.weight")
        tensors = files.tensors(renamed)
        stored = _counted(files, tensors, "num_hidden_layers", layers)
        heads = config.size("num_heads", stored)
        if heads != stored:
            raise UserError(f"{config.where}: num_heads is {heads}, and {stored} heads are stored")
        output = f"{SHARED_HEAD}.weight" if shared else "lm_heads.0.weight"
        vocabulary = config.size("vocab_size")
        rows = config.size("truncated_vocab_size", vocabulary)
        if rows > vocabulary:
            raise UserError(f"{config.where}: truncated_vocab_size is {rows}, and vocab_size {vocabulary}")
        if rows < vocabulary and output in tensors and TOKEN_MAP not in tensors:
            raise UserError(
                f"{config.where}: truncated_vocab_size is {rows} of {vocabulary}, and there is no {TOKEN_MAP}"
            )
        spec = MedusaSpec(
            heads,
            layers,
            bias=config.flag("medusa_fc_bias", False),
            target_hidden_size=config.size("hidden_size"),
            vocabulary=vocabulary,
            rows=rows,
            shared_head=shared,
            logit_scale=config.positive("logit_scale", 1.0),
        )
        return _published(self.title, spec, tensors, files, None)


def _counted(files: HeadFiles, tensors: HeadTensors, key: str, layers: int) -> int:
    """How many heads are stored. Raises UserError unless head 0 has so many blocks."""
    found = [match for name in tensors.names if (match := _VLLM_BLOCK.fullmatch(name))]
    blocks = sum(match[1] == "0" for match in found)
    if blocks != layers:
        raise UserError(f"{files.config.where}: {key} is {layers}, and head 0 has {blocks} residual blocks")
    heads = {int(match[1]) for match in found}
    if max(heads) >= len(heads):
        raise UserError(f"{files.store.where}: has head {max(heads)}, and {len(heads)} heads are stored")
    return len(heads)


def _sizes(tensors: HeadTensors, name: str, files: HeadFiles) -> tuple[int, int]:
    """Columns and rows of a matrix."""
    if name not in tensors or len(tensors.shape(name)) != 2:
        raise UserError(f"{files.store.where}: has no matrix '{name}', the output head of head 0")
    rows, columns = tensors.shape(name)
    return columns, rows


def _published(
    title: str, spec: MedusaSpec, tensors: HeadTensors, files: HeadFiles, target: str | None
) -> PublishedHead:
    return PublishedHead(title, spec, tensors, str(files.directory), files.directory.resolve().name, target)
