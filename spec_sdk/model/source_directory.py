"""What lies in a local directory: a checkpoint in Hugging Face layout, a GGUF file, or something we cannot use."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import names_in
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.gguf_parts import first_parts, parts_of
from spec_sdk.model.gguf_reader import is_part
from spec_sdk.model.safetensors_reader import INDEX_NAME

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Endings of pickle checkpoints. Unpickling runs code from the file, so they are never opened."""

_HUB_ADDRESS = re.compile(r"(?:https?://)?(?:huggingface|hf)\.co/(?P<id>[^/?#]+/[^/?#]+).*")
"""Of a model's page, or of a file of it, as browsers and other programs have it."""
_ADVICE = "convert it to safetensors (with transformers: save_pretrained) in a place you trust"


def locate(path: Path, reference: str) -> Path:
    """The Hugging Face-layout directory or the .gguf file that a local path means.

    Raises UserError if it is neither, with what to do about it.
    """
    if not path.exists():
        if address := _HUB_ADDRESS.fullmatch(reference):
            raise UserError(f"model '{reference}': is an address; the hub id in it is '{address['id']}'")
        raise UserError(f"model '{reference}': no such file or directory{_nearest(path)}")
    if path.is_file():
        return _locate_file(path)
    if not path.is_dir():
        raise UserError(f"{path}: is neither a directory nor a file")
    names = names_in(path)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if any(name.endswith(".safetensors") for name in names) or INDEX_NAME in names:
        if "config.json" not in names:
            raise UserError(f"{path}: has weights but no config.json")
        return path
    if ggufs:
        return _only_gguf(path, [path / name for name in ggufs])
    pickles = [name for name in names if Path(name).suffix in PICKLES]
    if pickles:
        raise UserError(f"{path}: has only pickle weights ({pickles[0]}), which are not loaded; {_ADVICE}")
    if "config.json" not in names:
        raise UserError(f"{path}: is no checkpoint: it has neither a config.json nor a .gguf file")
    raise UserError(f"{path}: has a config.json but no weights (*.safetensors)")


def weights_are_complete(directory: Path, beside: Sequence[str] = ("config.json", "tokenizer.json")) -> bool:
    """Whether every weight file that is listed is there, and those ``beside`` (a partial download lacks some)."""
    if not all((directory / name).is_file() for name in beside):
        return False
    index = directory / INDEX_NAME
    if not index.is_file():
        return any(directory.glob("*.safetensors"))
    shards = read_json_object(index).get("weight_map")
    return isinstance(shards, dict) and all((directory / str(shard)).is_file() for shard in shards.values())


def _locate_file(path: Path) -> Path:
    if path.suffix in PICKLES:
        raise UserError(f"{path}: is a pickle checkpoint, which is not loaded; {_ADVICE}")
    if path.suffix == ".gguf":
        return _first_part(path)
    if path.suffix == ".safetensors" or path.name in ("config.json", INDEX_NAME):
        raise UserError(f"{path}: name the directory that holds it, {path.parent}, not the file")
    raise UserError(f"{path}: is neither a model directory nor a .gguf file")


def _only_gguf(directory: Path, paths: Sequence[Path]) -> Path:
    """The directory's one file, or the first part of it."""
    firsts = first_parts(paths)
    if len(paths) == 1 or (len(firsts) == 1 and is_part(paths[0])):
        return _first_part(paths[0])
    # whole files may be called like parts
    there = firsts if len(firsts) > 1 else paths
    names = ", ".join(path.name for path in there)
    raise UserError(f"{directory}: holds {len(there)} .gguf files, name one of them: {names}")


def _first_part(path: Path) -> Path:
    """The first part of a file of several, of which ``path`` is any; a whole file itself, whatever it is called."""
    first = parts_of(path)[0]
    if first == path or not is_part(path):
        return path
    if not first.exists():
        raise UserError(f"{path}: is one of {len(parts_of(path))} parts, of which {first.name} is missing")
    return first


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f" ({path.parent} does not exist)"
    with contextlib.suppress(OSError):
        beside = os.listdir(path.parent)
        hint = did_you_mean(path.name, beside)
        # as it would be typed, with its directory
        typed = did_you_mean(str(path), (str(path.parent / name) for name in beside if f"'{name}'" in hint))
        return "" if hint.startswith(";") else typed
    return ""
