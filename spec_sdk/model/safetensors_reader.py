"""Safetensors files: headers checked strictly, whole tensors memory-mapped by the safetensors library, parts read.

Layout: 8 bytes header length (little-endian), a JSON header, data. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.lfs_pointer import check_pointer

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER = 100_000_000
_PART_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
}
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_OTHER_BYTES = {
    "I64": 8,
    "U64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


class SafetensorsFile:
    """One file. Raises UserError if it is truncated or corrupted; tensor bytes are not read until asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header, start = _read_header(path)
        self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        self.dtypes = {name: str(entry["dtype"]) for name, entry in header.items()}
        self._begins = {name: start + entry["data_offsets"][0] for name, entry in header.items()}
        try:
            self._file = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise UserError(f"{path}: is corrupted: {error}") from error

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped."""
        tensor: torch.Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        return tensor

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Neighbouring rows, and of each maybe only neighbouring columns, of a tensor as a matrix: a copy of its own.

        The rows are those of all but the last dim together. Of a tensor of one dim every number is a row. Nothing but
        these bytes is read, and no page of the file stays mapped. Raises UserError if the file is shorter than it was
        when it was opened, or cannot be read.
        """
        shape, dtype = self.shapes[name], _PART_DTYPES[self.dtypes[name]]
        width = shape[-1] if len(shape) > 1 else 1
        columns = columns or range(width)
        part_RC = torch.empty((len(rows), len(columns)), dtype=dtype)
        into = part_RC.view(torch.uint8).numpy().reshape(-1).data
        at = self._begins[name] + (rows.start * width + columns.start) * dtype.itemsize
        if len(columns) == width:
            _read_exactly(self.path, [(at, into)])
        else:
            step, size = width * dtype.itemsize, len(columns) * dtype.itemsize
            _read_exactly(self.path, ((at + i * step, into[i * size : (i + 1) * size]) for i in range(len(rows))))
        return part_RC if len(shape) > 1 else part_RC[:, 0]


class TensorFiles(Protocol):
    """The tensors of a checkpoint by name, read whole or in parts: see :class:`SafetensorsStore`."""

    where: str

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def tensor(self, name: str) -> torch.Tensor: ...

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str: ...

    def check_floating(self, names: Iterable[str]) -> None: ...


class SafetensorsStore:
    """All tensors of a checkpoint, in one file or several. ``where`` names the checkpoint in errors."""

    def __init__(self, files: Iterable[SafetensorsFile], where: str) -> None:
        self.where = where
        self._file_of: dict[str, SafetensorsFile] = {}
        for file in files:
            for name in file.shapes:
                if name in self._file_of:
                    other = self._file_of[name].path.name
                    raise UserError(f"{where}: tensor '{name}' is in both {other} and {file.path.name}")
                self._file_of[name] = file

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Tensor name → shape."""
        return {name: file.shapes[name] for name, file in self._file_of.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped. Raises KeyError for an unknown name."""
        return self._file_of[name].tensor(name)

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows and columns of a tensor: :meth:`SafetensorsFile.part`. Raises KeyError for an unknown name."""
        return self._file_of[name].part(name, rows, columns)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError for an unknown name."""
        return self._file_of[name].shapes[name]

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which a tensor is stored. Raises KeyError for an unknown name."""
        return self._file_of[name].dtypes[name]

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as anything but ordinary floating point."""
        for name in names:
            dtype = self.dtype(name)
            if dtype not in _FLOAT_BYTES:
                raise UserError(
                    f"{self._file_of[name].path}: tensor '{name}' is stored as {dtype}; read are float32, bfloat16, "
                    "float16, and FP8 with its scales: use such a checkpoint, or a GGUF file"
                )


def open_directory(directory: Path) -> SafetensorsStore:
    """The tensors of a Hugging Face-layout directory: the shards of its index, or its single file.

    Raises UserError for a missing or damaged file, and for an index that leads out of the directory or names a tensor
    that its shard does not have.
    """
    index = directory / INDEX_NAME
    if index.is_file():
        return _open_sharded(index)
    found = [path for path in directory.glob("*.safetensors") if not path.name.startswith("consolidated")]
    files = sorted(path for path in found if path.is_file())
    single = directory / SINGLE_NAME
    if single in files:
        files = [single]
    if found and not files:
        raise UserError(f"{found[0]}: is no file")
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise UserError(f"{directory}: holds {len(files)} safetensors files ({names}) but no {INDEX_NAME}")
    return SafetensorsStore([SafetensorsFile(files[0])], str(files[0]))


def _open_sharded(index: Path) -> SafetensorsStore:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index}: has no weight_map")
    shards: dict[str, SafetensorsFile] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard != Path(shard).name or shard in ("", ".", "..") or "\\" in shard:
            raise UserError(f"{index}: shard {shard!r} is not a file name within the directory")
        if shard not in shards:
            if not (index.parent / shard).is_file():
                raise UserError(f"{index}: shard {shard} is listed but missing")
            shards[shard] = SafetensorsFile(index.parent / shard)
        if name not in shards[shard].shapes:
            raise UserError(f"{index}: tensor '{name}' is listed in {shard}, which does not have it")
    return SafetensorsStore(shards.values(), str(index.parent))


def _read_exactly(path: Path, spans: Iterable[tuple[int, memoryview]]) -> None:
    """Fill each buffer from its place in the file. Raises UserError."""
    try:
        with path.open("rb", buffering=0) as file:
            for at, into in spans:
                while len(into):
                    # a single call reads no more than 2 GiB
                    got = os.preadv(file.fileno(), [into], at)
                    if not got:
                        raise UserError(f"{path}: is truncated: it had byte {at} when it was opened")
                    at, into = at + got, into[got:]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Tensor name → {dtype, shape, data_offsets}, every entry checked against the file's size; where the data begin."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise UserError(f"{path}: is truncated: {size} bytes")
            (length,) = struct.unpack("<Q", start)
            if length > min(size - 8, _MAX_HEADER):
                check_pointer(path)
                raise UserError(f"{path}: is truncated or not a safetensors file (header of {length} bytes in {size})")
            text = file.read(length)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{path}: is corrupted: its header is not JSON") from None
    if not isinstance(header, dict):
        raise UserError(f"{path}: is corrupted: its header is no JSON object")
    header.pop("__metadata__", None)
    _check_entries(path, header, size - 8 - length)
    return header, 8 + length


def _check_entries(path: Path, header: dict[str, Any], data_size: int) -> None:
    """Raise UserError unless the tensors tile the data: well-formed, in bounds, without overlap or rest."""
    spans = []
    for name, entry in header.items():
        try:
            shape, (begin, end), dtype = entry["shape"], entry["data_offsets"], str(entry["dtype"])
            whole = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{path}: is corrupted: entry of tensor '{name}'") from None
        item = _FLOAT_BYTES.get(dtype) or _OTHER_BYTES.get(dtype)
        if not whole or begin > end or (item is not None and end - begin != math.prod(shape) * item):
            raise UserError(f"{path}: is corrupted: size of tensor '{name}'")
        if end > data_size:
            raise UserError(f"{path}: is truncated: tensor '{name}' ends at data byte {end} of {data_size}")
        spans.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            raise UserError(f"{path}: is corrupted: tensor '{name}' overlaps another or leaves a gap")
        at = end
    if at != data_size:
        raise UserError(f"{path}: is corrupted: {data_size - at} bytes after the last tensor")
