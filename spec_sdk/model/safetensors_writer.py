"""Writing a safetensors file tensor by tensor, so that a model need not fit into memory."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from spec_sdk.errors import UserError, first_line
from spec_sdk.files import umask

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written: its safetensors dtype (F32, F16, BF16, I8 or U8) and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors that are in memory, and sync the file to disk. Raises UserError if it cannot be written."""
    try:
        save_file(dict(tensors), path, dict(metadata))
        # the library lets nobody else read it
        path.chmod(0o666 & ~umask())
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        # the library has an error of its own for a full disk
        raise UserError(f"{path}: cannot be written: {first_line(error)}") from error


def write_safetensors(
    path: Path,
    plans: Mapping[str, TensorPlan],
    chunks: Callable[[str], Iterable[bytes]],
    on_written: Callable[[int], None],
) -> None:
    """Write ``plans``' tensors, whose bytes ``chunks(name)`` yields, and sync the file to disk.

    ``on_written`` is told the bytes of each chunk. Raises OSError, and ValueError if a tensor comes out in another size
    than planned.
    """
    # widest first, so that every tensor is aligned to its item size
    order = sorted(plans, key=lambda name: -_BYTES[plans[name].dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in order:
        plan = plans[name]
        header[name] = {"dtype": plan.dtype, "shape": list(plan.shape), "data_offsets": [at, at + plan.size]}
        at += plan.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            written = 0
            for chunk in chunks(name):
                file.write(chunk)
                written += len(chunk)
                on_written(len(chunk))
            if written != plans[name].size:
                raise ValueError(f"tensor {name}: {written} bytes written, {plans[name].size} planned")
        file.flush()
        os.fsync(file.fileno())
