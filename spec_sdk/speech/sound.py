"""Sound files, read by libsndfile (package soundfile) and brought to another rate by soxr.

Legend: T samples, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import expanded
from spec_sdk.speech.extra import from_extra

OPTION = "audio"
CONVERT = "; convert it with: ffmpeg -i IN -ar 16000 -ac 1 OUT.flac"
LONGEST_HOURS = 24
"""Of one file: its samples are in memory as a whole, 230 MB an hour at 16 kHz."""


@dataclass(frozen=True)
class Sound:
    """One channel ``samples_T``, float32 in [-1, 1], at ``rate`` samples a second."""

    samples_T: torch.Tensor
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples_T) / self.rate


def read_sound(name: str) -> Sound:
    """The sound of a file, its channels averaged: WAV, FLAC, Ogg, MP3, AIFF and whatever else libsndfile reads.

    Raises UserError for what cannot be read, holds no samples or is damaged.
    """
    where = f"{OPTION}: {name}"
    with _opened(name, OPTION) as file:
        try:
            samples_TC = file.read(dtype="float32", always_2d=True)
        except RuntimeError as error:
            raise UserError(f"{where} is damaged: {_reason(error)}") from error
        rate = int(file.samplerate)
    if not len(samples_TC):
        raise UserError(f"{where} holds no samples")
    samples_T = torch.from_numpy(samples_TC).mean(1)
    if not bool(torch.isfinite(samples_T).all()):
        raise UserError(f"{where} has samples that are NaN or infinite")
    return Sound(samples_T, rate)


def check_sound(name: str, option: str = OPTION) -> None:
    """Raise UserError, naming ``option``, for a file that is no sound, without reading its samples."""
    with _opened(name, option):
        pass


def resampled(samples_T: torch.Tensor, rate: int, wanted: int) -> torch.Tensor:
    """The sound at ``wanted`` instead of ``rate`` samples a second: float32, about T · wanted / rate samples.

    What the lower rate cannot hold is filtered out (soxr's high quality).
    """
    if rate == wanted:
        return samples_T
    soxr = from_extra("soxr", OPTION)
    return torch.from_numpy(soxr.resample(samples_T.numpy(), rate, wanted, quality="HQ"))


def _opened(name: str, option: str) -> Any:
    soundfile = from_extra("soundfile", option)
    where, path = f"{option}: {name}", expanded(name, option)
    _check_file(path, where)
    try:
        file = soundfile.SoundFile(str(path))
    except RuntimeError as error:
        raise UserError(f"{where} is no sound that libsndfile reads ({_reason(error)}){CONVERT}") from error
    except TypeError as error:
        # it asks for rate and format of headerless files, which it knows by their name alone
        raise UserError(f"{where} is raw data without a header{CONVERT}") from error
    try:
        if not file.frames:
            raise UserError(f"{where} holds no samples")
        if not file.seekable() or file.frames / file.samplerate > LONGEST_HOURS * 3600:
            raise UserError(f"{where} is longer than {LONGEST_HOURS} hours, or of unknown length; cut it into parts")
    except BaseException:
        file.close()
        raise
    return file


def _check_file(path: Path, where: str) -> None:
    """The reasons that libsndfile does not tell apart."""
    if not path.exists():
        raise UserError(f"{where} does not exist")
    if path.is_dir():
        raise UserError(f"{where} cannot be read: Is a directory")
    if not path.is_file():
        raise UserError(f"{where} is no file; a sound has to be one")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror or error}") from error


def _reason(error: Exception) -> str:
    """What libsndfile says, without the path in front of it."""
    return message_of(error).rpartition(": ")[2].rstrip(".")[:120]
