"""Broken checkpoints: models, GGUF files, tokenizers and draft heads with one or two things wrong."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzzing.material import HEADS, Material
from benchmarks.fuzzing.trial import Place
from benchmarks.fuzzing.values import JSON, mutated

DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64", "", 5, None)
NOT_FINITE = (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff", b"\xff\xff\x7f\x7f")
"""NaN, inf, -inf and the largest number, as float32."""


def broken_checkpoint(rng: Random, material: Material, place: Place) -> list[str]:
    """Copies something sound to ``place.given``, breaks it; returns the command line that is to use it."""
    arguments = ["prompt=a b c", "max_new_tokens=3", "output_dir=out"]
    if rng.random() < 0.4:
        drafter = rng.choice(list(HEADS))
        pipeline, heads = HEADS[drafter]
        broken = _copy(material.head(rng.choice(heads)), place)
        target = material.model("smollm")
        arguments += [f"pipeline={pipeline}", f"model.target={target}", f"drafter.checkpoint={broken}"]
        # a policy that never asks the drafter would never read the head's last tensors
        arguments += ["policy=fixed", "policy.depth=2"]
    else:
        source = rng.choice([m for m in material.models()])
        broken = _copy(source, place)
        arguments.append(f"model.target={broken}")
        if source == material.model("whisper"):
            arguments[0] = f"audio={material.root / 'speech.wav'}"
        elif rng.random() < 0.2:
            arguments.append(rng.choice(("pipeline=sd_chain", "pipeline=easyspec_chain", "pipeline=alspec")))
        if source == material.model("module"):
            arguments += ["pipeline=mtp_chain", "policy=fixed", "policy.depth=2"]
    for _ in range(rng.choice((1, 1, 1, 2))):
        _break(broken, rng)
    return arguments


def _copy(source: Path, place: Place) -> Path:
    copy = place.given / source.name
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copy(source, copy)
    return copy


def _break(broken: Path, rng: Random) -> None:
    files = [path for path in sorted(broken.iterdir()) if path.is_file()] if broken.is_dir() else [broken]
    files = [path for path in files if os.access(path, os.R_OK) and path.stat().st_size]
    if not files:
        return
    path = rng.choice(files)
    own = {".json": _break_json, ".safetensors": _break_safetensors, ".gguf": _break_gguf}.get(path.suffix)
    breaks = (own, own, own, _break_file) if own is not None else (_break_file,)
    try:
        rng.choice(breaks)(path, rng)
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        # an earlier break left nothing of its format
        _break_file(path, rng)


def _break_file(path: Path, rng: Random) -> None:
    rng.choice((_truncate, _flip, _insert, _exchange, _exchange))(path, rng)


def _truncate(path: Path, rng: Random) -> None:
    size = path.stat().st_size
    os.truncate(path, rng.choice((0, 1, 7, 8, 100, size // 2, size - 1, rng.randrange(size))))


def _flip(path: Path, rng: Random) -> None:
    data = bytearray(path.read_bytes())
    reach = rng.choice((16, 200, 5000, len(data)))
    for _ in range(rng.choice((1, 1, 2, 10))):
        data[rng.randrange(min(len(data), reach))] = rng.randrange(256)
    path.write_bytes(data)


def _insert(path: Path, rng: Random) -> None:
    data = path.read_bytes()
    at = rng.choice((0, len(data), rng.randrange(len(data))))
    path.write_bytes(data[:at] + rng.choice((b"\x00", b"garbage", b"\xef\xbb\xbf", b"\xff" * 9, b"{")) + data[at:])


def _exchange(path: Path, rng: Random) -> None:
    """Something in its place that is no such file."""
    kind = rng.choice(("nothing", "directory", "dangling", "loop", "forbidden", "zero", "pipe", "binary", "json"))
    if kind == "forbidden":
        path.chmod(0)
        return
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind in ("dangling", "loop", "zero"):
        path.symlink_to({"dangling": "nowhere", "loop": path.name, "zero": "/dev/zero"}[kind])
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(rng.randbytes(rng.choice((1, 50, 5000))))
    elif kind == "json":
        path.write_text(_json(rng.choice(JSON)))


def _break_json(path: Path, rng: Random) -> None:
    path.write_text(_json(mutated(json.loads(path.read_text()), rng)))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1)


def _break_safetensors(path: Path, rng: Random) -> None:
    """Its header with another dtype, shape, offset or name; or numbers in it that are none."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = rng.choice([name for name in header if name != "__metadata__"])
    changes: tuple[Callable[[], object], ...] = (
        lambda: header[name].update(dtype=rng.choice(DTYPES)),
        lambda: header[name].update(shape=mutated(header[name]["shape"], rng)),
        lambda: header[name].update(shape=header[name]["shape"][::-1]),
        lambda: header[name].update(data_offsets=mutated(header[name]["data_offsets"], rng)),
        lambda: header.update({rng.choice(("x", "", name + "x", "model.layers.99.x")): header.pop(name)}),
        lambda: header.pop(name),
        lambda: header.update({name: rng.choice(JSON)}),
        lambda: _fill(body, header[name]["data_offsets"], rng),
    )
    rng.choice(changes)()
    text = json.dumps(header).encode()
    claimed = len(text) if rng.random() < 0.9 else rng.choice((0, 1, 2**40, 2**63, len(text) - 1, len(text) + 1))
    path.write_bytes(struct.pack("<Q", claimed) + text + body)


def _fill(body: bytearray, span: tuple[int, int], rng: Random) -> None:
    begin, end = span
    value = rng.choice(NOT_FINITE)
    count = rng.choice((4, end - begin))
    body[begin : begin + count] = (value * (count // 4 + 1))[:count]


def _break_gguf(path: Path, rng: Random) -> None:
    """Numbers of its header and metadata, which lie at its beginning."""
    data = bytearray(path.read_bytes())
    begins = [
        i
        for key in (b"general.", b"llama.", b"tokenizer.", b"qwen2moe.", b"gemma2.", b"blk.")
        for i in _finds(bytes(data), key)
    ]
    if rng.random() < 0.3 or not begins:
        at = 4 + 4 * rng.randrange(5)
    else:
        at = rng.choice(begins) + rng.choice((-8, 0, 3, *range(12, 60)))
    value = rng.choice((b"\x00", b"\xff", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x09", b"\x08"))
    at = max(0, min(at, len(data) - len(value)))
    data[at : at + len(value)] = value
    path.write_bytes(data)


def _finds(data: bytes, key: bytes) -> list[int]:
    found, at = [], data.find(key)
    while at >= 0:
        found.append(at)
        at = data.find(key, at + 1)
    return found
