"""Reading GGUF files (llama.cpp's format): metadata and where each tensor lies. Nothing is trusted, all is bounded.

Layout, little-endian: magic, version, tensor count, metadata count; the metadata; the tensor table; aligned data.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.gguf_parts import parts_of
from spec_sdk.model.lfs_pointer import check_pointer

MAGIC = b"GGUF"
COUNT, WHOLE = "split.count", (0, 1)
"""What a file says of how many parts there are, and where it says that it has none."""
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4
# a metadata entry is at least a key length, a type and one byte; a tensor entry a length, a count, a type and an offset
_SMALLEST_ENTRY = 13
_SMALLEST_TENSOR = 24


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies. ``shape`` is in torch order (rows first), ``kind`` is GGML's type name, such as Q4_1.

    ``part``: in which of a file's parts ``offset`` is, from 0.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int
    part: int = 0


class _Malformed(Exception):
    """What is wrong with the file, without its name."""


class GGUFFile:
    """A GGUF file, memory-mapped, with all its parts if ``path`` is the first of several.

    Raises UserError for anything that is not a whole, well-formed one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self.metadata, self.tensors, data = _open(path)
        self._parts = [data]
        count = self.metadata.get(COUNT, 1)
        if count not in WHOLE:
            self._add_parts(count)

    def _add_parts(self, count: object) -> None:
        """Read the parts that the first one, or its name, speaks of."""
        paths = parts_of(self.path)
        if count != len(paths) or paths[0] != self.path:
            raise UserError(
                f"{self.where}: says that it is one of {count} parts; they are looked for beside it, under llama.cpp's "
                "names: NAME-00001-of-00003.gguf"
            )
        for number, path in enumerate(paths[1:], start=1):
            if not path.exists():
                raise UserError(f"{self.where}: is one of {count} parts, of which {path.name} is missing")
            metadata, tensors, data = _open(path)
            if (metadata.get("split.no"), metadata.get(COUNT)) != (number, count):
                raise UserError(f"{path}: is not part {number + 1} of {count}, as its name says")
            if twice := self.tensors.keys() & tensors.keys():
                raise UserError(f"{path}: has tensor '{min(twice)}', which another part has too")
            self.tensors |= {name: replace(tensor, part=number) for name, tensor in tensors.items()}
            self._parts.append(data)
        claimed = self.metadata.get("split.tensors.count", len(self.tensors))
        if claimed != len(self.tensors):
            raise UserError(f"{self.where}: its parts have {len(self.tensors)} tensors, not {claimed}")

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """GGUF tensor name → shape, rows first."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def raw(self, name: str) -> memoryview:
        """The stored bytes of a tensor, not copied."""
        tensor = self.tensors[name]
        return memoryview(self._parts[tensor.part])[tensor.offset : tensor.offset + tensor.size]


def is_part(path: Path) -> bool:
    """Whether a file says that it is one of several. Raises UserError for one that is damaged."""
    return _open(path)[0].get(COUNT, 1) not in WHOLE


def _open(path: Path) -> tuple[dict[str, Any], dict[str, GGUFTensor], mmap.mmap]:
    """Metadata, tensors and the bytes of one file."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise _Malformed("is truncated: shorter than a GGUF header")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return *_parse(data), data
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _Malformed as error:
        check_pointer(path)
        raise UserError(f"{path}: {error}") from error


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    if data[:4] != MAGIC:
        raise _Malformed("is not a GGUF file (bad magic)")
    cursor = _Cursor(data, 4)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        if int.from_bytes(data[4:8], "big") in _VERSIONS:
            raise _Malformed("is a big-endian GGUF file, which is not supported")
        raise _Malformed(f"is GGUF version {version}; versions 2 and 3 are read")
    tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
    if tensor_count * _SMALLEST_TENSOR + entry_count * _SMALLEST_ENTRY > len(data):
        raise _Malformed(
            f"is corrupted: it claims {tensor_count} tensors and {entry_count} metadata entries in {len(data)} bytes"
        )
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    table = [_table_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Malformed(f"is corrupted: its alignment is {alignment!r}, not a power of two")
    start = (cursor.at + alignment - 1) // alignment * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, type_id, offset in table:
        kind, size = _stored(name, shape, type_id)
        if name in tensors:
            raise _Malformed(f"is corrupted: it has tensor '{name}' twice")
        if start + offset + size > len(data):
            raise _Malformed(
                f"is truncated: tensor '{name}' ends at byte {start + offset + size}, the file at {len(data)}"
            )
        tensors[name] = GGUFTensor(name, shape, kind, start + offset, size)
    return metadata, tensors


def _table_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (rows first), GGML type id and offset in the data of one tensor."""
    name = cursor.string()
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise _Malformed(f"is corrupted: tensor '{name}' has {dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    while len(shape) > 1 and shape[0] == 1:
        # ggml tells it from one that is not there as little as llama.cpp's converters do
        shape = shape[1:]
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _stored(name: str, shape: tuple[int, ...], type_id: int) -> tuple[str, int]:
    """GGML's name of a type and the bytes that a tensor of it takes."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise _Malformed(f"stores tensor '{name}' in the unknown GGML type {type_id}") from None
    if shape[-1] % block or not all(shape):
        raise _Malformed(f"is corrupted: tensor '{name}' of shape {list(shape)} is not made of {kind.name} blocks")
    return kind.name, math.prod(shape) // block * block_bytes


class _Cursor:
    """A position in the file that never leaves it."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self._data = data
        self.at = at

    def scalar(self, code: str) -> Any:
        """One value of a struct format code."""
        start = self._advance(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self._data, start)[0]

    def string(self) -> str:
        """A length, then that many bytes of UTF-8."""
        length = self.scalar("Q")
        start = self._advance(length)
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise _Malformed(f"is corrupted: the text at byte {start} is not UTF-8") from None

    def value(self, type_id: int, depth: int = 0) -> Any:
        """A metadata value: a scalar, a string, or an array of one type."""
        if type_id in _SCALARS:
            return self.scalar(_SCALARS[type_id])
        if type_id == _STRING:
            return self.string()
        if type_id != _ARRAY or depth == _MAX_NESTING:
            raise _Malformed(f"is corrupted: metadata of unknown type {type_id} at byte {self.at}")
        element, count = self.scalar("I"), self.scalar("Q")
        if element in _SCALARS:
            layout = f"<{self._within(count, struct.calcsize('<' + _SCALARS[element]))}{_SCALARS[element]}"
            start = self._advance(struct.calcsize(layout))
            return list(struct.unpack_from(layout, self._data, start))
        return [self.value(element, depth + 1) for _ in range(self._within(count, 8))]

    def _within(self, count: int, smallest: int) -> int:
        """``count``, if that many elements can follow at all."""
        if count * smallest > len(self._data) - self.at:
            raise _Malformed(f"is truncated or corrupted: an array of {count} elements at byte {self.at}")
        return count

    def _advance(self, length: int) -> int:
        """Step over ``length`` bytes; return where they begin."""
        start = self.at
        if length > len(self._data) - start:
            raise _Malformed(f"is truncated: {length} bytes expected at byte {start} of {len(self._data)}")
        self.at = start + length
        return start
