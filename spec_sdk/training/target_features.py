"""The target's hidden states of a data set, on disk: one file for each shard of samples, whole or not there.

They are made once, by prefill passes over several samples at a time, and mapped into memory while a head learns from
them. Beside the data a manifest says whose states they are.

Legend: T positions of a shard's samples together, M model dim, F tapped layers times M.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import write_json
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.session import Session
from spec_sdk.training.chain_batch import pairs_of
from spec_sdk.training.sample_shards import MANIFEST, read_shard, save_whole
from spec_sdk.training.samples import Sample

PASS_TOKENS = 2048
"""Rows of a prefill pass, about."""
TELL_EVERY_S = 10.0
_TENSOR = "feature_TF"


class TargetFeatures:
    """The states of ``taps`` in ``directory``. ``identity``: what they follow from, as plain data.

    Raises UserError for a directory with states of another identity, naming what differs.
    """

    def __init__(self, directory: Path, identity: Mapping[str, Any], taps: Sequence[int], model_dim: int) -> None:
        self.directory = directory
        self.taps = tuple(taps)
        self.width = len(self.taps) * model_dim
        self._identity = json.loads(json.dumps({"taps": list(taps), **identity}))
        path = directory / MANIFEST
        if path.is_file():
            found = read_json_object(path).get("identity")
            if found != self._identity:
                raise UserError(
                    f"task.features: {path} is of another target, other data or other task.taps; name another directory"
                )
        elif directory.is_dir() and any(directory.iterdir()):
            raise UserError(f"task.features: {directory} is not empty and has no {MANIFEST}; name another directory")
        self._places: dict[int, tuple[Any, int, int]] = {}

    def fitting(self, shards: Sequence[Path], most_bytes: float) -> list[Path]:
        """The first of ``shards`` whose states take at most ``most_bytes`` together."""
        taken, kept = 0, []
        for path in shards:
            taken += 2 * self.width * sum(pairs_of(sample) for sample in read_shard(path))
            if taken > most_bytes:
                break
            kept.append(path)
        return kept

    def missing(self, shards: Sequence[Path]) -> list[Path]:
        """Those of ``shards`` that have no states yet."""
        return [path for path in shards if not self._path(path).is_file()]

    def write(self, shards: Sequence[Path], session: Session, slots: int, tell: Callable[[str], None]) -> None:
        """Make what is not there yet. ``slots``: most samples in a pass. Raises OSError, and what the target raises."""
        missing = self.missing(shards)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.directory / MANIFEST, {"identity": self._identity})
        began = told = time.perf_counter()
        done = 0
        for number, path in enumerate(missing):
            samples = list(read_shard(path))
            self._write_shard(self._path(path), samples, session, slots)
            done += sum(map(pairs_of, samples))
            now = time.perf_counter()
            if now - told > TELL_EVERY_S or number + 1 == len(missing):
                told, rate = now, done / (now - began)
                left = (now - began) / (number + 1) * (len(missing) - number - 1)
                tell(
                    f"features: {len(shards) - len(missing) + number + 1} of {len(shards)} files, {rate:.0f} tokens a "
                    f"second, {left / 60:.0f} min left"
                )

    def open(self, shards: Sequence[Path]) -> list[Sample]:
        """Map the states of these shards, for :meth:`of`, and return their samples.

        Raises UserError for a file that is damaged, not there or of other samples.
        """
        found = []
        for shard in shards:
            path, samples = self._path(shard), list(read_shard(shard))
            if not path.is_file():
                raise UserError(f"task.features: {path} is not there; run task.only=features before")
            try:
                file = safe_open(path, framework="pt")
                about = json.loads(file.metadata()["samples"])  # type: ignore[no-untyped-call]
                rows = file.get_slice(_TENSOR)  # type: ignore[no-untyped-call]
                shape = rows.get_shape()
            except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
                raise UserError(f"task.features: {path} is damaged ({message_of(error)[:120]}); remove it") from error
            if about != _about(samples) or shape != [sum(map(pairs_of, samples)), self.width]:
                raise UserError(f"task.features: {path} has states of other samples than {shard.name}; remove it")
            first = 0
            for sample in samples:
                self._places[sample.number] = (rows, first, pairs_of(sample))
                first += pairs_of(sample)
            found += samples
        return found

    def of(self, sample: Sample) -> torch.Tensor:
        """States [:func:`~spec_sdk.training.chain_batch.pairs_of` its positions, F], bfloat16."""
        rows, first, count = self._places[sample.number]
        states: torch.Tensor = rows[first : first + count]
        return states

    def _path(self, shard: Path) -> Path:
        return self.directory / shard.name.replace("shard-", "features-")

    def _write_shard(self, path: Path, samples: Sequence[Sample], session: Session, slots: int) -> None:
        feature_TF = torch.empty(sum(map(pairs_of, samples)), self.width, dtype=torch.bfloat16)
        firsts, at = [], 0
        for sample in samples:
            firsts.append(at)
            at += pairs_of(sample)
        for group in _groups(samples, slots):
            texts = [[*samples[i].prompt, *samples[i].answer][: pairs_of(samples[i])] for i in group]
            for slot in range(len(group)):
                session.open(slot, (), keep=False)
            states = session.prefill_together(range(len(group)), texts, self.taps)
            for i, hidden in zip(group, states, strict=True):
                rows = feature_TF[firsts[i] : firsts[i] + pairs_of(samples[i])]
                rows.copy_(torch.cat([hidden[tap] for tap in self.taps], dim=-1))
        save_whole(path, {_TENSOR: feature_TF}, {"samples": json.dumps(_about(samples))})


def _groups(samples: Sequence[Sample], slots: int) -> Iterator[list[int]]:
    """Samples of about one length, :data:`PASS_TOKENS` together."""
    group: list[int] = []
    for i in sorted((i for i in range(len(samples)) if pairs_of(samples[i])), key=lambda i: pairs_of(samples[i])):
        if group and ((len(group) + 1) * pairs_of(samples[i]) > PASS_TOKENS or len(group) == slots):
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _about(samples: Sequence[Sample]) -> list[list[int]]:
    """By which samples are known again: number, positions with states, and a check of the text, of each."""
    return [
        [sample.number, pairs_of(sample), zlib.crc32(json.dumps([sample.prompt, sample.answer]).encode())]
        for sample in samples
    ]
