"""A data set on disk: safetensors shards of samples, and a manifest that says whose answers they are.

A shard is written whole and renamed into place, so that a run that was killed goes on after the last one.

Legend: S samples of a shard, P their prompt tokens together, A their answer tokens together, K labels of a token.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import write_json
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.safetensors_writer import save_tensors
from spec_sdk.training.samples import Sample

MANIFEST = "manifest.json"
VERSION = 1


class SampleShards:
    """The shards of a directory. ``identity``: what their samples follow from, as plain data.

    Raises UserError for a directory with samples of another identity, naming what differs.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory = directory
        self._identity = json.loads(json.dumps({"version": VERSION, **identity}))
        path = directory / MANIFEST
        if path.is_file():
            _check_same(_said(path).get("identity"), self._identity, path)
        elif directory.is_dir() and any(directory.iterdir()):
            raise UserError(f"task.data: {directory} is not empty and has no {MANIFEST}; name another directory")
        self._waiting: list[Sample] = []
        self._shards = shard_files(directory)

    @property
    def paths(self) -> list[Path]:
        """The files on disk, in order."""
        return list(self._shards)

    def read(self) -> Iterator[Sample]:
        """The samples on disk."""
        for path in self._shards:
            yield from read_shard(path)

    def add(self, sample: Sample, shard_tokens: int) -> None:
        """Keep a sample; written once there are ``shard_tokens`` tokens of answers."""
        self._waiting.append(sample)
        if sum(len(waiting.answer) for waiting in self._waiting) >= shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what was kept. Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._waiting:
            # where a damaged one was removed there is a gap
            numbers = map("shard-{:05d}.safetensors".format, itertools.count())
            path = next(path for path in map(self.directory.joinpath, numbers) if path not in self._shards)
            write_shard(path, self._waiting)
            self._shards = sorted([*self._shards, path])
            self._waiting = []

    def write_manifest(self, counts: Mapping[str, Any]) -> None:
        """What the samples follow from, and how many there are."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / MANIFEST, {"identity": self._identity, **counts})


def _said(path: Path) -> dict[str, Any]:
    """What a manifest says. Raises UserError for a damaged one."""
    try:
        return read_json_object(path)
    except UserError as error:
        raise UserError(
            f"task.data: {error}; remove {path.parent.name}, or name another directory, to begin anew"
        ) from error


def shard_files(directory: Path) -> list[Path]:
    """The shards of a directory, in order. Where one was removed, its samples are answered again, by their numbers."""
    return sorted(directory.glob("shard-*.safetensors")) if directory.is_dir() else []


def write_shard(path: Path, samples: Iterable[Sample]) -> None:
    """One file, whole or not there. Raises OSError."""
    together = list(samples)
    about = [
        {"number": s.number, "kind": s.kind, "held_out": s.held_out, "temperature": s.temperature} for s in together
    ]
    tensors = {
        "prompt_length_S": torch.tensor([len(s.prompt) for s in together], dtype=torch.int32),
        "answer_length_S": torch.tensor([len(s.answer) for s in together], dtype=torch.int32),
        "prompt_P": torch.tensor([token for s in together for token in s.prompt], dtype=torch.int32),
        "answer_A": torch.tensor([token for s in together for token in s.answer], dtype=torch.int32),
        "top_id_AK": torch.cat([s.top_id_AK for s in together]),
        "top_logprob_AK": torch.cat([s.top_logprob_AK for s in together]),
        "logprob_A": torch.cat([s.logprob_A for s in together]),
    }
    save_whole(path, tensors, {"samples": json.dumps(about)})


def read_shard(path: Path) -> Iterator[Sample]:
    """The samples of a file. Raises UserError for one that is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["samples"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        prompt_lengths, answer_lengths = tensors["prompt_length_S"].tolist(), tensors["answer_length_S"].tolist()
        parts = zip(
            about,
            tensors["prompt_P"].split(prompt_lengths),
            *(tensors[name].split(answer_lengths) for name in ("answer_A", "top_id_AK", "top_logprob_AK", "logprob_A")),
            strict=True,
        )
        for facts, prompt_P, answer_A, top_id_AK, top_logprob_AK, logprob_A in parts:
            labels = {"top_id_AK": top_id_AK, "top_logprob_AK": top_logprob_AK, "logprob_A": logprob_A}
            yield Sample(prompt=prompt_P.tolist(), answer=answer_A.tolist(), **{**facts, **labels})
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(
            f"task.data: {path} is damaged ({message_of(error)[:120]}); remove it, and run task.only=data again"
        ) from error


def save_whole(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file that is whole or not there, also after a crash. Raises OSError or UserError."""
    # of one name: what a killed process left is written over
    staged = path.with_name(f".{path.name}.partial")
    try:
        save_tensors(staged, tensors, metadata)
        os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


_FINGERPRINTS = {
    "target_fingerprint": "other weights of the target",
    "vocabulary_fingerprint": "another vocabulary of the target",
    "prompts_fingerprint": "other texts in the files of prompts and openings",
}
"""What another one means."""


def _check_same(found: Any, wanted: Mapping[str, Any], path: Path) -> None:
    found = found if isinstance(found, Mapping) else {}
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            differs = f"has {key} {found.get(key)!r}, and this run {wanted.get(key)!r}"
            differs = f"was begun with {_FINGERPRINTS[key]}" if key in _FINGERPRINTS else differs
            raise UserError(f"task.data: {path} {differs}; name another directory, or what it was begun with")
