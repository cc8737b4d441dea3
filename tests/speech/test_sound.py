"""Sound files in the formats that are read, and what is said of those that are not."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
import soundfile
import torch

from spec_sdk.errors import UserError
from spec_sdk.speech.sound import check_sound, read_sound, resampled

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
    assert read_sound(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


@pytest.mark.parametrize(("bits", "letter"), [(32, "f"), (64, "d")])
def test_floats(bits: int, letter: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(layout_of(3, bits), struct.pack(f"<6{letter}", *SAMPLES)))
    assert read_sound(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


def test_channels_are_averaged_and_the_rate_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(layout_of(1, 16, channels=2, rate=44100), integers(16)))
    found = read_sound(str(tmp_path / "a.wav"))
    assert found.samples_T.tolist() == [0.25, -0.125, -0.125] and found.rate == 44100


def test_extensible_other_chunks_and_an_unknown_length(tmp_path: Path) -> None:
    pcm = bytes.fromhex("0100000000001000800000aa00389b71")
    extensible = layout_of(0xFFFE, 16) + struct.pack("<HHI", 22, 16, 0) + pcm
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    # a program that writes into a pipe does not know the length, and half a sample may be missing
    (tmp_path / "a.wav").write_bytes(riff(extensible, integers(16) + b"\1", odd, size=0xFFFFFFFF))
    assert read_sound(str(tmp_path / "a.wav")).samples_T.tolist() == SAMPLES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no sound that libsndfile reads .* convert it with"),
        (b"ID3 an mp3", "is no sound that libsndfile reads .* convert it with"),
        (riff(layout_of(1, 16)[:8], b"abcd"), "Short 'fmt ' chunk"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0" + layout_of(1, 16), "No 'data' chunk"),
        (riff(layout_of(0x1234, 16), b"abcd"), "no sound that libsndfile reads"),
        (riff(layout_of(1, 16, channels=0), b"abcd"), "Channel count is zero"),
        (riff(layout_of(1, 16), b""), "holds no samples"),
        (riff(layout_of(3, 32), struct.pack("<f", float("nan"))), "NaN"),
    ],
)
def test_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_sound(str(tmp_path / "a.wav"))
    assert str(error.value).startswith("audio: ") and "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_sound(str(tmp_path / "none.wav"))
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_sound(str(tmp_path))
    with pytest.raises(UserError, match="/dev/zero is no file"):
        read_sound("/dev/zero")
    (tmp_path / "a.raw").write_bytes(b"abcd")
    with pytest.raises(UserError, match="raw data without a header"):
        read_sound(str(tmp_path / "a.raw"))


def noise(seconds: float = 0.5, channels: int = 1) -> torch.Tensor:
    return 0.2 * torch.randn(int(seconds * 16000), channels, generator=torch.Generator().manual_seed(3))


def test_flac_is_read_whole_and_damage_is_told(tmp_path: Path) -> None:
    path, wanted_TC = tmp_path / "a.flac", noise(channels=2)
    soundfile.write(path, wanted_TC.numpy(), 22050, subtype="PCM_24")
    found = read_sound(str(path))
    assert found.rate == 22050 and found.seconds == len(wanted_TC) / 22050
    torch.testing.assert_close(found.samples_T, wanted_TC.mean(1), atol=2**-22, rtol=0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    check_sound(str(path))
    with pytest.raises(UserError, match="a.flac is damaged: flac decoder lost sync"):
        read_sound(str(path))


@pytest.mark.parametrize("kind", ["OGG", "MP3", "AIFF"])
def test_other_formats(kind: str, tmp_path: Path) -> None:
    """Those that lose something are near what they were given: what is tested is that samples come in order."""
    path, time_T = tmp_path / f"a.{kind.lower()}", torch.arange(16000) / 16000
    wanted_T = 0.5 * torch.sin(2 * torch.pi * 440 * time_T)
    soundfile.write(path, wanted_T.numpy(), 16000, format=kind)
    found = read_sound(str(path))
    assert found.rate == 16000 and abs(len(found.samples_T) - 16000) < 3000
    count = min(len(found.samples_T), 16000)
    assert float((found.samples_T[:count] - wanted_T[:count]).abs().max()) < 0.1


def test_too_long_a_file_is_refused_by_its_header(tmp_path: Path) -> None:
    # one sample a second
    (tmp_path / "a.wav").write_bytes(riff(layout_of(1, 8, rate=1), bytes(90_000)))
    for look in (check_sound, read_sound):
        with pytest.raises(UserError, match="longer than 24 hours"):
            look(str(tmp_path / "a.wav"))


def test_without_the_extra_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=r"^audio: soundfile is not installed: pip install 'spec-sdk\[speech\]'$"):
        read_sound(str(tmp_path / "a.wav"))
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(UserError, match="soxr is not installed"):
        resampled(torch.zeros(10), 8000, 16000)


def test_float_samples_are_what_they_were(tmp_path: Path) -> None:
    wanted = torch.linspace(-1, 1, 77)
    (tmp_path / "a.wav").write_bytes(riff(layout_of(3, 32), wanted.numpy().tobytes()))
    assert torch.equal(read_sound(str(tmp_path / "a.wav")).samples_T, wanted)
