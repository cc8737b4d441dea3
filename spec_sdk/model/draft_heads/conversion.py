"""From a head's pickle to safetensors, once: only tensors are read, and no code from the file runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.files import scratch_directory
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.block_spec import MASK_EMBEDDING
from spec_sdk.model.draft_heads.head_files import HeadFiles
from spec_sdk.model.draft_heads.layouts import read_head
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.opening import MASK_EMBEDDING_FILE, pickles_in
from spec_sdk.model.safetensors_reader import SINGLE_NAME, open_directory
from spec_sdk.model.safetensors_writer import save_tensors


def convert_draft_head(source: Path, output: Path) -> PublishedHead:
    """Write the tensors of ``source``'s pickles, and its config.json, into the new directory ``output``.

    The mask embedding that stands in a pickle beside a DFlash head's safetensors joins them there.

    Raises UserError, and leaves nothing behind, for a pickle that holds anything but tensors, for a head of no known
    layout, and where ``output`` is there already.
    """
    if output.exists():
        raise UserError(f"task.output: {output} is there already; name a directory that is not")
    if not (source / "config.json").is_file():
        raise UserError(f"{source}: has no config.json")
    tensors = _tensors_of(source)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(output.parent, f".{output.name}.partial-") as staged:
            shutil.copyfile(source / "config.json", staged / "config.json")
            save_tensors(staged / SINGLE_NAME, tensors, {"format": "pt"})
            read_head(HeadFiles.open(staged))
            staged.chmod(0o755)
            os.replace(staged, output)
    except OSError as error:
        raise UserError(f"task.output: {output}: {error.strerror or error}") from error
    return read_head(HeadFiles.open(output))


def _tensors_of(source: Path) -> dict[str, torch.Tensor]:
    """The tensors of all weight files of a directory, each in memory of its own."""
    if (source / MASK_EMBEDDING_FILE).is_file():
        store = open_directory(source)
        stored = {name: store.tensor(name).clone() for name in store.shapes}
        return {**stored, MASK_EMBEDDING: _mask_embedding(source / MASK_EMBEDDING_FILE, source / "config.json")}
    pickles = pickles_in(source)
    files = [path for path in pickles if path.name.startswith("pytorch_model")] or pickles
    if not files:
        raise UserError(f"{source}: has no pickle weights (pytorch_model.bin)")
    if len(files) > 1 and not all(path.name.startswith("pytorch_model-") for path in files):
        raise UserError(f"{source}: holds {len(files)} pickles ({', '.join(path.name for path in files)}), leave one")
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        for name, tensor in _loaded(path).items():
            if name in tensors:
                raise UserError(f"{path}: tensor '{name}' is in another of the files too")
            tensors[name] = tensor.detach().contiguous().clone()
    return tensors


def _mask_embedding(path: Path, config: Path) -> torch.Tensor:
    """What the mask token is fed as [M]: a tensor, or one called ``embedding`` beside the token's number."""
    state = _unpickled(path)
    embedding = state.get("embedding") if isinstance(state, dict) else state
    if not isinstance(embedding, torch.Tensor):
        raise UserError(f"{path}: holds no embedding")
    said = read_json_object(config)
    nested = said.get("dflash_config")
    told = {**said, **(nested if isinstance(nested, dict) else {})}.get("mask_token_id")
    token = state.get("mask_token_id") if isinstance(state, dict) else None
    if token is not None and int(token) != told:
        raise UserError(f"{path}: is of token {int(token)}, and config.json says mask_token_id={told}")
    return embedding.detach().reshape(-1).contiguous().clone()


def _loaded(path: Path) -> dict[str, torch.Tensor]:
    state = _unpickled(path)
    if not isinstance(state, dict):
        raise UserError(f"{path}: holds a {type(state).__name__}, not tensors by name")
    other = next((name for name, value in state.items() if not isinstance(value, torch.Tensor)), None)
    if other is not None:
        raise UserError(f"{path}: '{other}' is a {type(state[other]).__name__}, not a tensor")
    return {str(name): tensor for name, tensor in state.items()}


def _unpickled(path: Path) -> Any:
    try:
        # tensors and plain containers only: whatever else a pickle names is refused by torch, not run
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path}: is damaged, or holds more than tensors, and is not converted: {reason}") from error
