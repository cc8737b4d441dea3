"""Hydra heads as zankner/Hydra publishes them. Their file is a pickle, ``hydra_lm_head.pt``, to be converted first."""

from __future__ import annotations

import re

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.head_files import HeadFiles, HeadTensors
from spec_sdk.model.draft_heads.hydra_spec import PREFIX_TOKENS, HydraSpec
from spec_sdk.model.draft_heads.layouts.layout import DraftHeadLayout, PublishedHead

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
# spelled as in the files
_PREFIX = "prefix_embeding_layer."
_ARCHITECTURES = {"mlp": "Hydra", "prefix-mlp": "Hydra++"}


class HydraLayout(DraftHeadLayout):
    """The tensors are ``hydra_mlp.{head}.{place}.…`` and ``hydra_lm_head.{head}.…``. In Hydra++ a dropout stands before
    every block, so that the places of the blocks are 1, 3, 5 …; else they are 0, 1, 2 ….
    """

    title = "Hydra"

    def recognises(self, files: HeadFiles) -> bool:
        return "hydra_head_arch" in files.config.values or any(_BLOCK.fullmatch(name) for name in files.names)

    def read(self, files: HeadFiles) -> PublishedHead:
        config = files.config
        kind = config.text("hydra_head_arch", "mlp")
        if kind not in _ARCHITECTURES:
            known = " and ".join(_ARCHITECTURES)
            raise UserError(f"{config.where}: hydra_head_arch is '{kind}'; of Hydra's heads {known} are read")
        if not config.flag("grounded_heads", False):
            raise UserError(
                f"{config.where}: grounded_heads is not true: these heads do not read the tokens between, and only "
                "those that do are read"
            )
        tensors = files.tensors(_renamed(files, dropout=kind == "prefix-mlp"))
        heads, layers = _counted(files, tensors)
        if "lm_heads.0.weight" not in tensors or len(tensors.shape("lm_heads.0.weight")) != 2:
            raise UserError(f"{files.store.where}: has no matrix 'hydra_lm_head.0', the output head of head 0")
        vocabulary, hidden_size = tensors.shape("lm_heads.0.weight")
        offset = config.number("hidden_state_offset", 0)
        if offset < 0 or offset != int(offset):
            raise UserError(f"{config.where}: hidden_state_offset is {offset:g}, no number of layers")
        spec = HydraSpec(heads, layers, hidden_size, vocabulary, offset=int(offset), has_prefix=kind == "prefix-mlp")
        target = config.text("base_model_name_or_path", "") or None
        name = files.directory.resolve().name
        return PublishedHead(_ARCHITECTURES[kind], spec, tensors, str(files.directory), name, target)


def _renamed(files: HeadFiles, dropout: bool) -> dict[str, str]:
    renamed = {}
    for stored in files.names:
        if block := _BLOCK.fullmatch(stored):
            head, place, part, kind = block.groups()
            number, between = divmod(int(place) - dropout, 1 + dropout)
            if not between and (part == "linear" or number == 0):
                renamed[f"blocks.{head}.{'shortcut' if part != 'linear' else f'layers.{number}'}.{kind}"] = stored
        elif output := _OUTPUT.fullmatch(stored):
            renamed[f"lm_heads.{output[1]}.{output[2]}"] = stored
        elif stored.startswith(_PREFIX):
            rest = stored.removeprefix(_PREFIX)
            renamed[PREFIX_TOKENS if rest == "embed_tokens.weight" else rest] = stored
        elif stored == "input_embed_fn.weight":
            renamed["embed_tokens.weight"] = stored
    return renamed


def _counted(files: HeadFiles, tensors: HeadTensors) -> tuple[int, int]:
    """Heads and their blocks. Raises UserError unless config.json says as many."""
    blocks = [match for name in tensors.names if (match := re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name))]
    numbers = {int(match[1]) for match in blocks}
    heads = len(numbers)
    if numbers and max(numbers) >= heads:
        raise UserError(f"{files.store.where}: has head {max(numbers)}, and {heads} heads are stored")
    layers = sum(match[1] == "0" for match in blocks)
    for key, stored, what in (("hydra_num_heads", heads, "heads"), ("hydra_num_layers", layers, "blocks of head 0")):
        said = files.config.size(key, stored or 1)
        if said != stored:
            raise UserError(f"{files.config.where}: {key} is {said}, and {stored} {what} are stored")
    return heads, layers
