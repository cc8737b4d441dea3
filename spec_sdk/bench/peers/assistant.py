"""A draft model as transformers takes an assistant: a directory with all weights in floating point."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.files import write_json
from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.borrowed_weights import KEY, BorrowingModel
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.draft_cut import resolve_cut
from spec_sdk.model.gguf_convert import require_room
from spec_sdk.model.layers_of import LayersOf, settings_of_layers
from spec_sdk.model.models import AUTO_DRAFT, CUT_DRAFT
from spec_sdk.model.packed_weights import published
from spec_sdk.model.safetensors_reader import SINGLE_NAME, open_directory
from spec_sdk.model.safetensors_writer import save_tensors
from spec_sdk.model.source_cache import CacheEntry
from spec_sdk.model.stored_matrices import CODES
from spec_sdk.model.trained_drafts import trained_draft
from spec_sdk.training.draft_directory import TOKENIZER_FILES

_FORMAT = 1


@dataclass(frozen=True)
class Assistant:
    """``directory``: in Hugging Face layout. ``name``: a label for reports."""

    directory: Path
    name: str


def assistant_of(target_reference: str, draft: str, draft_layers: str | Sequence[int], dtype: str) -> Assistant:
    """What ``model.draft`` and ``model.draft_layers`` mean beside this target, for transformers.

    A whole checkpoint is used as it is. A draft model that takes weights from its target, one in few bits, and a cut of
    the target are written to spec-sdk's cache, once, in ``dtype`` (float32, bfloat16, float16); one that drafts some
    tokens only can draft all of them there. Raises UserError for what cannot be, such as another vocabulary.
    """
    target = open_checkpoint(target_reference)
    if draft == AUTO_DRAFT:
        trained = trained_draft(target, ("model",)) if draft_layers == "auto" else None
        draft = CUT_DRAFT if trained is None else str(trained)
    if draft == CUT_DRAFT or draft.startswith(f"{CUT_DRAFT}:"):
        named = draft.removeprefix(CUT_DRAFT).removeprefix(":")
        return _cut(target, named or draft_layers, dtype)
    own = open_checkpoint(draft)
    if own.tokenizer.vocabulary != target.tokenizer.vocabulary:
        raise UserError(f"{own.name} has another vocabulary than {target.name}: it cannot assist it")
    if not own.borrowed and not any(name.endswith(CODES) for name in open_directory(own.directory).shapes):
        return Assistant(own.directory, own.name)
    source = BorrowingModel(own, own.borrowed, target) if own.borrowed else own
    settings = read_json_object(own.directory / "config.json")
    settings.pop(KEY, None)
    return _written(own.name, settings, source, own, dtype, [own, target] if own.borrowed else [own])


def _cut(target: Checkpoint, draft_layers: str | Sequence[int], dtype: str) -> Assistant:
    layers = resolve_cut(draft_layers, target.name, target.config.num_layers, target.config.shared_kv_layers)
    source = LayersOf(target, layers)
    settings = settings_of_layers(read_json_object(target.directory / "config.json"), target.config, layers)
    settings["tie_word_embeddings"] = target.config.tie_embeddings
    name = f"{target.name}, {len(layers)} of {target.config.num_layers} layers"
    if read_config(settings, f"{name}, config.json") != source.config:
        raise UserError(
            f"the config.json of {target.name} says of its layers by their number which are of what kind, and cannot "
            "say it of some of them alone; name a checkpoint as task.assistant"
        )
    return _written(name, settings, source, target, dtype, [target], layers)


def _written(
    name: str,
    settings: Mapping[str, Any],
    source: TensorSource,
    tokenizer: Checkpoint,
    dtype: str,
    made_from: Sequence[Checkpoint],
    layers: Sequence[int] = (),
) -> Assistant:
    stored = getattr(torch, dtype)

    def write(directory: Path) -> None:
        sizes = [rows * columns for rows, columns in _matrices(source)]
        require_room(directory, sum(sizes) * stored.itemsize)
        tensors = {name: source.tensor(name).to(stored, copy=True).contiguous() for name in sorted(source.names())}
        save_tensors(directory / SINGLE_NAME, published(tensors, weights_of(source.config)), {"format": "pt"})
        for file in TOKENIZER_FILES:
            if (tokenizer.directory / file).is_file():
                shutil.copyfile(tokenizer.directory / file, directory / file)
        write_json(directory / "config.json", {**settings, "dtype": dtype})

    made: dict[str, Any] = {
        "format": _FORMAT,
        "dtype": dtype,
        "layers": list(layers),
        "files": {str(checkpoint.directory): _stamps(checkpoint.directory) for checkpoint in made_from},
    }
    key = hashlib.sha256(json.dumps([dtype, list(layers), *made["files"]]).encode()).hexdigest()[:12]
    entry = CacheEntry(f"assistant-{key}", f"{name} for transformers", made)
    return Assistant(entry.obtain(write), name)


def _matrices(source: TensorSource) -> list[tuple[int, int]]:
    return [(shape[0], shape[1]) for shape in weights_of(source.config).shapes.values() if len(shape) == 2]


def _stamps(directory: Path) -> dict[str, list[int]]:
    """Size and time of the files that weights and sizes come from."""
    files = sorted(path for path in directory.iterdir() if path.suffix in (".safetensors", ".json"))
    return {path.name: [stat.st_size, stat.st_mtime_ns] for path in files for stat in [path.stat()]}
