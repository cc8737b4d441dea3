"""WAV files in the formats that are read, and what is said of those that are not."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.speech.wav import read_wav

SAMPLES = [0.0, 0.5, -0.5, 0.25, -1.0, 0.75]


def riff(layout: bytes, data: bytes, between: bytes = b"", size: int | None = None) -> bytes:
    body = b"fmt " + struct.pack("<I", len(layout)) + layout + between
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def layout_of(kind: int, bits: int, channels: int = 1, rate: int = 16000) -> bytes:
    width = bits // 8
    return struct.pack("<HHIIHH", kind, channels, rate, rate * width * channels, width * channels, bits)


def integers(bits: int) -> bytes:
    scale = 2 ** (bits - 1)
    if bits == 8:
        return bytes(int(round(x * 128)) + 128 for x in SAMPLES)
    return b"".join(int(round(x * scale)).to_bytes(bits // 8, "little", signed=True) for x in SAMPLES)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_integers(bits: int, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(layout_of(1, bits), integers(bits)))
    assert read_wav(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


@pytest.mark.parametrize(("bits", "letter"), [(32, "f"), (64, "d")])
def test_floats(bits: int, letter: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(layout_of(3, bits), struct.pack(f"<6{letter}", *SAMPLES)))
    assert read_wav(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


def test_channels_are_averaged_and_the_rate_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(layout_of(1, 16, channels=2, rate=44100), integers(16)))
    found = read_wav(str(tmp_path / "a.wav"))
    assert found.samples_T.tolist() == [0.25, -0.125, -0.125] and found.rate == 44100


def test_extensible_other_chunks_and_an_unknown_length(tmp_path: Path) -> None:
    extensible = layout_of(0xFFFE, 16) + struct.pack("<HHIH", 22, 16, 0, 1) + bytes(14)
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    # a program that writes into a pipe does not know the length, and half a sample may be missing
    (tmp_path / "a.wav").write_bytes(riff(extensible, integers(16) + b"\1", odd, size=0xFFFFFFFF))
    assert read_wav(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no WAV file; convert it with"),
        (b"ID3 an mp3", "is no WAV file; convert it with"),
        (riff(layout_of(1, 16)[:8], b"abcd"), "without a format"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + layout_of(1, 16), "without data"),
        (riff(layout_of(7, 8), b"abcd"), "format 7 with 8 bits"),
        (riff(layout_of(1, 16, channels=0), b"abcd"), "0 channels"),
        (riff(layout_of(1, 16), b""), "holds no samples"),
        (riff(layout_of(3, 32), struct.pack("<f", float("nan"))), "NaN"),
    ],
)
def test_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_wav(str(tmp_path / "a.wav"))
    assert str(error.value).startswith("audio: ") and "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_wav(str(tmp_path / "none.wav"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_wav(str(tmp_path))


def test_float_samples_are_what_they_were(tmp_path: Path) -> None:
    wanted = torch.linspace(-1, 1, 77)
    (tmp_path / "a.wav").write_bytes(riff(layout_of(3, 32), wanted.numpy().tobytes()))
    assert torch.equal(read_wav(str(tmp_path / "a.wav")).samples_T, wanted)
