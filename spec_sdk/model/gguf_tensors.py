"""Weights of a GGUF file under their Hugging Face names: dequantized, and as Hugging Face's checkpoints have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.gguf_reader import GGUFFile

_HALF_TYPES = {"F16": "F16", "BF16": "BF16"}
_CHUNK_ELEMENTS = 8_000_000


class GGUFWeights:
    """The tensors of a GGUF file by Hugging Face name.

    F16 and BF16 tensors stay as they are; everything else, quantized or not, becomes float32. Where llama.cpp's
    converter reordered the rows of a tensor (``rotary_pairs`` in the table of weights), or added one to it
    (``gain_minus_one``), that is undone here.
    """

    def __init__(self, gguf: GGUFFile, config: ModelConfig) -> None:
        self._gguf = gguf
        self._table = weights_of(config)
        self._head_dim = config.head_dim

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first."""
        return self._gguf.tensors[self._table.gguf_name(name)].shape

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which :meth:`chunks` delivers: F32, F16 or BF16."""
        if self._table.entry(name)[0].gain_minus_one:
            return "F32"
        return _HALF_TYPES.get(self._gguf.tensors[self._table.gguf_name(name)].kind, "F32")

    def chunks(self, name: str) -> Iterator[bytes]:
        """The tensor's bytes (little-endian, row-major), some rows at a time.

        Raises UserError for a quantization that the gguf package cannot undo.
        """
        tensor = self._gguf.tensors[self._table.gguf_name(name)]
        rows = tensor.shape[0]
        stored = np.frombuffer(self._gguf.raw(tensor.name), dtype=np.uint8)
        if len(tensor.shape) == 1 and tensor.size != rows * self._item_size(name):
            rows = 1
        stored = stored.reshape(rows, -1)
        row, _ = self._table.entry(name)
        if row.rotary_pairs:
            stored = _unpermute(stored, rows // self._head_dim)
        step = max(1, _CHUNK_ELEMENTS * rows // max(1, _elements(tensor.shape)))
        for start in range(0, rows, step):
            floats = self._floats(stored[start : start + step], tensor.kind, row.gain_minus_one)
            yield (floats - np.float32(1) if row.gain_minus_one else floats).tobytes()

    def _item_size(self, name: str) -> int:
        return 4 if self.dtype(name) == "F32" else 2

    def _floats(self, stored: npt.NDArray[np.uint8], kind: str, wide: bool) -> npt.NDArray[Any]:
        """Stored rows as float32; unless ``wide``, F16 and BF16 are left as they are, in bytes."""
        if kind == "F32":
            return np.ascontiguousarray(stored).view("<f4")
        if kind in _HALF_TYPES and not wide:
            return np.ascontiguousarray(stored)
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            floats: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(stored), GGMLQuantizationType[kind])
        except NotImplementedError as error:
            raise UserError(f"{self._gguf.where}: tensors stored as {kind} cannot be read") from error
        return floats.astype("<f4", copy=False)


def _elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _unpermute(rows: npt.NDArray[np.uint8], heads: int) -> npt.NDArray[np.uint8]:
    """Rows of neighbouring rotary pairs (x0 y0 x1 y1 ...), head by head, as halves (x0 x1 ... y0 y1 ...)."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
