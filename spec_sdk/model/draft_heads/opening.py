"""From what a user calls a draft head to its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spec_sdk.errors import UserError
from spec_sdk.files import expanded, names_in
from spec_sdk.model.checkpoint import HUB_GGUF, HUB_ID, hub_file, looks_like_path
from spec_sdk.model.draft_heads.gguf_module import NoModule, module_of_gguf
from spec_sdk.model.draft_heads.head_files import HeadFiles
from spec_sdk.model.draft_heads.layouts import read_head
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.layouts.mtp import MtpLayout
from spec_sdk.model.gguf_parts import whole_name
from spec_sdk.model.source_directory import PICKLES, locate, weights_are_complete

OPTION = "drafter.checkpoint"
MASK_EMBEDDING_FILE = "mask_embedding.pt"
"""Beside some DFlash heads: what the mask token is fed as, a pickle."""


def open_draft_head(reference: str) -> PublishedHead:
    """Open a head by local directory, by GGUF file, or by Hugging Face hub id; no weights are read yet.

    Of a GGUF file its prediction module is meant. Raises UserError, one line, for what cannot be found, is no head of a
    known layout, or is a pickle.
    """
    gguf = gguf_of(reference)
    if gguf is not None:
        return _of_gguf(gguf, whole_name(gguf))
    directory = head_directory(reference, OPTION)
    pickles = pickles_in(directory)
    if pickles and not weights_are_complete(directory, ("config.json",)):
        raise UserError(f"{directory}: has only pickle weights ({pickles[0].name}); {conversion_advice(reference)}")
    if (directory / MASK_EMBEDDING_FILE).is_file():
        raise UserError(f"{directory}: has a pickle, {MASK_EMBEDDING_FILE}; {conversion_advice(reference)}")
    return read_head(HeadFiles.open(directory))


def open_own_module(directory: Path, name: str) -> PublishedHead:
    """The prediction module in the checkpoint of the target ``name``. Raises UserError if there is none."""
    files, layout = HeadFiles.open(directory), MtpLayout()
    if not layout.recognises(files):
        raise _no_module(name)
    return replace(layout.read(files), name=name)


def open_own_gguf_module(path: Path, name: str) -> PublishedHead:
    """The same in the GGUF file of the target ``name``."""
    try:
        return _of_gguf(path, name)
    except NoModule:
        raise _no_module(name) from None


def _no_module(name: str) -> UserError:
    return UserError(
        f"{OPTION}: is not given, and {name} has no prediction module (MTP) among its tensors; name one, a directory, "
        "a .gguf file or a Hugging Face hub id"
    )


def gguf_of(reference: str) -> Path | None:
    """The GGUF file that a reference means, downloaded if it is one of the hub; None if it means no such file."""
    path = expanded(reference, OPTION)
    if path.suffix == ".gguf" and path.is_file():
        return locate(path, reference)
    if not path.exists() and (of_hub := HUB_GGUF.fullmatch(reference)):
        return hub_file(of_hub["repository"], of_hub["quantization"])
    return None


def _of_gguf(path: Path, name: str) -> PublishedHead:
    return replace(read_head(HeadFiles.open(module_of_gguf(path))), name=name, where=str(path))


def pickles_in(directory: Path) -> list[Path]:
    """The pickle files of a directory. Raises UserError for one that cannot be read."""
    return [directory / name for name in names_in(directory) if Path(name).suffix in PICKLES]


def conversion_advice(reference: str) -> str:
    """The command that makes safetensors of a head's pickle."""
    target = f"{reference.rstrip('/').rsplit('/', 1)[-1]}-safetensors"
    return (
        "unpickling could run code from the file, so convert its tensors once: "
        f"python -m spec_sdk task=convert_draft_head task.input={reference} task.output={target}"
    )


def head_directory(reference: str, option: str, pickled: bool = False) -> Path:
    """The directory that a head's reference means, downloaded if it is a hub id. ``pickled``: with pickle weights."""
    if not reference.strip():
        raise UserError(f"{option}: is empty; name a directory or a Hugging Face hub id")
    path = expanded(reference, option)
    if path.is_dir():
        return path
    if path.exists():
        raise UserError(f"{option}: {reference} is a file; name the directory that holds it")
    if looks_like_path(reference) or not HUB_ID.fullmatch(reference):
        raise UserError(f"{option}: {reference}: no such directory or file, nor a Hugging Face hub id (org/name)")
    return _hub_directory(reference, option, pickled)


def _hub_directory(reference: str, option: str, pickled: bool) -> Path:
    from spec_sdk.model.source_hub import HubUnreachable, Wanted, cached_snapshot, downloaded_snapshot

    wanted = Wanted(
        patterns=("*.json", *(("*.bin", "*.pt") if pickled else ()), "*.safetensors", MASK_EMBEDDING_FILE),
        complete=(lambda directory: bool(pickles_in(directory)))
        if pickled
        else (lambda directory: weights_are_complete(directory, ("config.json",))),
        weights=(".bin", ".pt") if pickled else (".safetensors",),
        advice="there is nothing to convert" if pickled else conversion_advice(reference),
    )
    found = cached_snapshot(reference, wanted)
    if found is not None:
        return found
    try:
        return downloaded_snapshot(reference, wanted)
    except HubUnreachable as error:
        raise UserError(
            f"{option}: {reference} is not in the hub's local cache, and the Hugging Face hub does not answer ({error})"
        ) from error
