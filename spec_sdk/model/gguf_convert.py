"""Turning a GGUF file into a directory in Hugging Face layout."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.model.architectures import read_config, read_gguf_config, weights_of
from spec_sdk.model.checkpoint_shapes import check_shapes
from spec_sdk.model.claimed_counts import check_counts
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_module import is_module_alone
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import DIVISORS, LONG, SHORT
from spec_sdk.model.gguf_tensors import GGUFWeights, input_scale_name, scale_name
from spec_sdk.model.gguf_tokenizer import end_token_ids, tokenizer_config, tokenizer_of
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.safetensors_writer import write_safetensors
from spec_sdk.model.source_progress import byte_progress
from spec_sdk.model.weight_table import WeightTable

CONVERTER_VERSION = 7
"""Part of what a converted directory was made from: raise it when the same GGUF would be converted differently."""

_ROOM_FOR_REST = 50_000_000


def convert_gguf(path: Path, directory: Path, label: str) -> None:
    """Write config, tokenizer, chat template, license and weights of the GGUF file ``path`` into ``directory``.

    Matrices in few bits stay so (:class:`GGUFWeights`); other weights are float32, or half precision where the file
    has them so. ``directory`` exists. Raises UserError for a file that cannot be used, before anything is written, and
    OSError (ENOSPC) if the disk is full: before, if the room is foreseeably short.
    """
    gguf = GGUFFile(path)
    check_counts(gguf.metadata, gguf.shapes, gguf.where)
    if is_module_alone(gguf):
        raise UserError(
            f"{gguf.where}: holds a prediction module (MTP) without its model; name it with drafter.checkpoint, and "
            "its model with model.target"
        )
    values = read_gguf_config(gguf)
    config = read_config(values, gguf.where)
    table = weights_of(config)
    check_shapes(table.gguf_shapes, gguf.shapes, gguf.where)
    check_all_read(gguf, table)
    tokenizer = tokenizer_of(gguf)
    weights = GGUFWeights(gguf, config)
    total = sum(plan.size for plan in weights.plans.values())
    require_room(directory, total + _ROOM_FOR_REST)

    ends = [i for i in end_token_ids(gguf) if i < config.vocab_size]
    write_json(directory / "config.json", values)
    write_json(directory / "generation_config.json", _generation_config(config, ends))
    write_json(directory / "tokenizer_config.json", tokenizer_config(gguf))
    write_atomically(directory / "tokenizer.json", tokenizer.to_str())
    template = gguf.metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        write_atomically(directory / "chat_template.jinja", template)
    named = gguf.metadata.get("general.license")
    if isinstance(named, str) and named.strip():
        write_atomically(directory / "README.md", _card(label, named))
    with byte_progress(f"converting {label}", total) as advance:
        write_safetensors(directory / SINGLE_NAME, weights.plans, weights.chunks, advance)


def check_all_read(gguf: GGUFFile, table: WeightTable) -> None:
    """Raise UserError for tensors that belong to another model than the one that its metadata speak of."""
    weights = table.gguf_shapes
    # scales of activations are for kernels that round these too
    read = {name for weight in weights for name in (weight, scale_name(weight), input_scale_name(weight))}
    read |= {DIVISORS, LONG, SHORT} | table.idle_in_gguf
    modules = _prediction_modules(gguf)
    left = [name for name in gguf.tensors if name not in read and not name.startswith(modules)]
    if left := [name for name in left if "rot_embd" not in name]:
        which = f"tensor '{left[0]}'" if len(left) == 1 else f"tensor '{left[0]}' and {len(left) - 1} more"
        architecture = gguf.metadata.get("general.architecture")
        raise UserError(f"{gguf.where}: {which} would be left out: its architecture '{architecture}' has none such")


def _prediction_modules(gguf: GGUFFile) -> tuple[str, ...]:
    """What the names of tensors of prediction modules begin with, which the file counts as its last blocks."""
    meta = Fields(gguf.metadata, gguf.where)
    architecture = meta.text("general.architecture", "")
    modules = meta.count(f"{architecture}.nextn_predict_layers", 0)
    blocks = meta.count(f"{architecture}.block_count") if modules else 0
    return tuple(f"blk.{block}." for block in range(max(0, blocks - modules), blocks))


def _card(label: str, named: str) -> str:
    """A model card, as the hub's: what the file says of its license goes with the weights."""
    return f"---\nlicense: {' '.join(named.split())}\n---\n\n# {label}\n\nConverted from a GGUF file by spec-sdk.\n"


def require_room(directory: Path, needed: int) -> None:
    """Raise OSError (ENOSPC) if ``directory``'s file system has fewer than ``needed`` bytes free."""
    if shutil.disk_usage(directory).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))


def _generation_config(config: ModelConfig, ends: list[int]) -> Mapping[str, object]:
    return {"bos_token_id": config.bos_token_id, "eos_token_id": ends[0] if len(ends) == 1 else ends}
