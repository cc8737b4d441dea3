"""WAV files, read with the standard library: integer PCM of 8 to 32 bits and floats of 32 and 64.

Legend: T samples, C channels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from spec_sdk.errors import UserError
from spec_sdk.files import expanded, read_bytes

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CONVERT = "; convert it with: ffmpeg -i IN -ar 16000 -ac 1 OUT.wav"


@dataclass(frozen=True)
class Sound:
    """One channel ``samples_T``, float32 in [-1, 1], at ``rate`` samples a second."""

    samples_T: torch.Tensor
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples_T) / self.rate


def read_wav(name: str, option: str = "audio") -> Sound:
    """The sound of a WAV file, its channels averaged. Raises UserError, naming ``option``, for what cannot be read."""
    where = f"{option}: {name}"
    content = read_bytes(expanded(name, option), where)
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise UserError(f"{where} is no WAV file{CONVERT}")
    chunks = _chunks(content)
    layout, data = chunks.get(b"fmt ", b""), chunks.get(b"data")
    if len(layout) < 16 or data is None:
        raise UserError(f"{where} is a WAV file without {'a format' if len(layout) < 16 else 'data'}{CONVERT}")
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", layout[:16])
    if kind == EXTENSIBLE and len(layout) >= 26:
        # the first two bytes of the format's GUID
        (kind,) = struct.unpack("<H", layout[24:26])
    if (kind, bits) not in _READERS:
        raise UserError(f"{where} holds samples of format {kind} with {bits} bits; PCM and floats are read{CONVERT}")
    if not channels or not rate:
        raise UserError(f"{where} claims {channels} channels at {rate} samples a second{CONVERT}")
    whole = len(data) // (channels * bits // 8) * (channels * bits // 8)
    if not whole:
        raise UserError(f"{where} holds no samples")
    samples_T = _READERS[kind, bits](data[:whole]).view(-1, channels).mean(1)
    if not bool(torch.isfinite(samples_T).all()):
        raise UserError(f"{where} has samples that are NaN or infinite")
    return Sound(samples_T, rate)


def _chunks(content: bytes) -> dict[bytes, bytes]:
    """The file's chunks by name, the first of each. One that says it is longer than the file ends with it: that is what
    programs write that do not know the length before.
    """
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(content):
        name, size = struct.unpack("<4sI", content[at : at + 8])
        chunks.setdefault(name, content[at + 8 : at + 8 + size])
        # chunks begin at even places
        at += 8 + size + size % 2
    return chunks


def _integers(data: bytes, dtype: torch.dtype, full_scale: float) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).double().div(full_scale).float()


def _of_24_bits(data: bytes) -> torch.Tensor:
    low, middle, high = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 3).int().unbind(1)
    value = low + (middle << 8) + (high << 16)
    return (value - ((high >> 7) << 24)).double().div(2**23).float()


_READERS: Mapping[tuple[int, int], Callable[[bytes], torch.Tensor]] = {
    (PCM, 8): lambda data: _integers(data, torch.uint8, 128) - 1,
    (PCM, 16): lambda data: _integers(data, torch.int16, 2**15),
    (PCM, 24): _of_24_bits,
    (PCM, 32): lambda data: _integers(data, torch.int32, 2**31),
    (FLOAT, 32): lambda data: torch.frombuffer(bytearray(data), dtype=torch.float32),
    (FLOAT, 64): lambda data: torch.frombuffer(bytearray(data), dtype=torch.float64).float(),
}
