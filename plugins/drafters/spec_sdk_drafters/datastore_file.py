"""The file of a datastore: texts as tokens, one after the other, and their suffix array, as safetensors.

| tensor | |
|---|---|
| ``tokens`` [N] | U32: the texts, after each of them :data:`END` |
| ``suffixes`` [N] | U32: the places of ``tokens``, sorted by the :data:`SORTED_BY` tokens that begin there |
| ``starts`` [V + 1] | I64: token t begins the suffixes ``starts[t]`` … ``starts[t + 1] - 1`` |

Its metadata has the format's version and the fingerprint of the tokenizer. Legend: N tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from spec_sdk.errors import UserError
from spec_sdk.files import scratch_directory
from spec_sdk.model.safetensors_reader import SafetensorsFile
from spec_sdk.model.safetensors_writer import save_tensors
from spec_sdk_drafters.suffix_array import Tokens, suffix_array

FORMAT, VERSION = "spec_sdk.datastore", "1"
END = 0xFFFFFFFF
"""In the place of a token: a text ends. No run of tokens of a vocabulary reaches beyond it."""
SORTED_BY = 32
"""Tokens that suffixes are sorted by: the longest run that can be looked up, what is drafted after it included."""
DTYPES = {"tokens": "U32", "suffixes": "U32", "starts": "I64"}


@dataclass(frozen=True)
class DatastoreTensors:
    """The parts of a datastore, memory-mapped: processes that read one file share its pages."""

    tokens: memoryview
    suffixes: memoryview
    starts: memoryview


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Of a tokenizer's vocabulary, token → id, in a few digits: ids mean the same where it is the same."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{number}:{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def write_datastore(path: Path, token_N: Tokens, vocabulary_size: int, tokenizer: str, model: str) -> None:
    """Index a text, in which :data:`END` follows each document, and write both, whole or not at all.

    ``tokenizer``: its :func:`fingerprint`; ``model``: a label for messages. Raises UserError if it cannot be written.
    """
    suffix_N = suffix_array(token_N, SORTED_BY)
    starts = np.concatenate([[0], np.cumsum(np.bincount(token_N[token_N != END], minlength=vocabulary_size))])
    tensors = {
        "tokens": torch.from_numpy(token_N),
        "suffixes": torch.from_numpy(suffix_N),
        "starts": torch.from_numpy(starts.astype(np.int64)),
    }
    metadata = {"format": FORMAT, "version": VERSION, "tokenizer": tokenizer, "model": model}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_directory(path.parent, f".{path.name}.") as scratch:
            save_tensors(scratch / path.name, tensors, metadata)
            os.replace(scratch / path.name, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def is_datastore(path: Path) -> bool:
    """Whether a file says that it is one, of any version."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="pt") as opened:
            return (opened.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        return False


def open_datastore(path: Path, tokenizer: str, where: str) -> DatastoreTensors:
    """Map a datastore's file. ``tokenizer``: the fingerprint of the one whose ids will be looked up.

    Raises UserError, beginning with ``where``, for a file that is no datastore, damaged, or of another tokenizer.
    """
    if not path.is_file():
        raise UserError(f"{where}: {path} does not exist; task=build_datastore makes one")
    try:
        file = SafetensorsFile(path)
        with safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
    except (UserError, SafetensorError) as error:
        raise UserError(f"{where}: {path} is no datastore; task=build_datastore makes one ({error})") from error
    if metadata.get("format") != FORMAT or file.dtypes != DTYPES:
        raise UserError(f"{where}: {path} is no datastore; task=build_datastore makes one")
    if metadata.get("version") != VERSION:
        raise UserError(
            f"{where}: {path} has version {metadata.get('version')} of the format, not {VERSION}: make it anew"
        )
    if metadata.get("tokenizer") != tokenizer:
        raise UserError(
            f"{where}: {path} has tokens of another tokenizer, that of {metadata.get('model')}; "
            "make one with task=build_datastore and this model.target"
        )
    if file.shapes["tokens"] != file.shapes["suffixes"] or any(len(shape) != 1 for shape in file.shapes.values()):
        raise UserError(f"{where}: {path} is corrupted: its tokens and suffixes do not fit each other")
    arrays = {name: file.tensor(name).numpy() for name in DTYPES}
    token_N, start_V = arrays["tokens"], arrays["starts"]
    # what would take the reading of all of it is not looked for: a wrong place costs acceptance, and nothing else
    ordered = len(start_V) > 1 and start_V[0] == 0 and start_V[-1] <= len(token_N) and (np.diff(start_V) >= 0).all()
    if not len(token_N) or token_N[-1] != END or not ordered:
        raise UserError(f"{where}: {path} is corrupted: its starts are not those of its tokens")
    return DatastoreTensors(*(array.data for array in arrays.values()))
