"""Weights of a GGUF file under their Hugging Face names: in their own bits, or as Hugging Face's checkpoints are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.gguf_blocks import LAYOUTS, codes_of, offsets_of, scales_of
from spec_sdk.model.gguf_reader import GGUFFile, GGUFTensor
from spec_sdk.model.safetensors_writer import TensorPlan
from spec_sdk.model.stored_matrices import CODES, LEVELS, OFFSET, SCALE
from spec_sdk.model.weight_table import WeightTable
from spec_sdk.ops.quantized import GROUP, scales_of_group

_HALF_TYPES = {"F16": "F16", "BF16": "BF16"}
_CHUNK_ELEMENTS = 8_000_000


class GGUFWeights:
    """The tensors of a GGUF file by Hugging Face name, as they are to be written.

    Matrices of the quantisations in :data:`~spec_sdk.model.gguf_blocks.LAYOUTS` stay in few bits, as codes, scales and
    offsets (:mod:`spec_sdk.model.stored_matrices`). F16 and BF16 tensors stay as they are; everything else, quantized
    or not, becomes float32, times the scale that a file may have for all of a tensor (``*.scale``). Where llama.cpp's
    converter reordered the rows of a tensor (``rotary_pairs`` in the table of weights), added one to it
    (``gain_minus_one``), or stores another function of it (``gguf_negated_exponential``), that is undone here. Tensors
    of single experts are cut out of that of all experts of their layer.

    ``table``: the tensors to be read, in place of all that a model of ``config`` has. Raises UserError for one of a
    quantization that the gguf package cannot undo.
    """

    def __init__(self, gguf: GGUFFile, config: ModelConfig, table: WeightTable | None = None) -> None:
        self._gguf = gguf
        self._table = table or weights_of(config)
        self._head_dim = config.head_dim
        self._plans: dict[str, TensorPlan] = {}
        self._parts: dict[str, tuple[str, str]] = {}
        for stored in self._table.gguf_shapes:
            self._check_readable(self._gguf.tensors[stored])
        for name in self._table.shapes:
            for part, plan in self._planned(name).items():
                self._plans[name + part] = plan
                self._parts[name + part] = name, part

    @property
    def plans(self) -> dict[str, TensorPlan]:
        """What is written: tensor name → safetensors dtype and shape."""
        return self._plans

    def chunks(self, planned: str) -> Iterator[bytes]:
        """The bytes (little-endian, row-major) of one of :attr:`plans`, some rows at a time."""
        name, part = self._parts[planned]
        kind = self._gguf.tensors[self._table.gguf_name(name)].kind
        minus_one, scale = self._table.entry(name).row.gain_minus_one, self._scale(name)
        for stored in self._stored(name):
            if part == CODES:
                yield codes_of(stored, kind).tobytes()
            elif part == SCALE:
                yield scales_of(stored, kind).tobytes()
            elif part == LEVELS:
                yield np.array(LAYOUTS[kind].levels, np.int8).tobytes()
                return
            elif part == OFFSET:
                offsets = offsets_of(stored, kind)
                assert offsets is not None
                yield offsets.tobytes()
            else:
                floats = _floats(stored, kind, minus_one or scale is not None)
                if scale is not None:
                    floats = floats * scale
                if self._table.entry(name).row.gguf_negated_exponential:
                    floats = np.log(-floats)
                yield (floats - np.float32(1) if minus_one else floats).tobytes()

    def _planned(self, name: str) -> dict[str, TensorPlan]:
        """A tensor's parts: codes, scale and offset, or "" alone."""
        row = self._table.entry(name).row
        shape, kind = self._table.shape(row.role), self._gguf.tensors[self._table.gguf_name(name)].kind
        if not self._keeps_bits(name):
            wide = row.gain_minus_one or self._scale(name) is not None
            return {"": TensorPlan("F32" if wide else _HALF_TYPES.get(kind, "F32"), shape)}
        layout, (rows, columns) = LAYOUTS[kind], shape
        codes = TensorPlan("I8" if layout.bits == 8 else "U8", (rows, columns * layout.bits // 8))
        scale = TensorPlan("F16", (rows, columns // GROUP * scales_of_group(layout.bits)))
        levels = {} if layout.levels is None else {LEVELS: TensorPlan("I8", (len(layout.levels),))}
        return {CODES: codes, SCALE: scale} | ({} if layout.offsets is None else {OFFSET: scale}) | levels

    def _keeps_bits(self, name: str) -> bool:
        row = self._table.entry(name).row
        kind = self._gguf.tensors[self._table.gguf_name(name)].kind
        shape = self._table.shape(row.role)
        if kind not in LAYOUTS or len(shape) != 2 or shape[1] % GROUP or self._scale(name) is not None:
            return False
        # what the file does not have just so may be out of float16's range, of weights beyond 65504
        return LAYOUTS[kind].stored or all(
            part is None or np.isfinite(part).all()
            for stored in self._stored(name)
            for part in (scales_of(stored, kind), offsets_of(stored, kind))
        )

    def _stored(self, name: str) -> Iterator[npt.NDArray[np.uint8]]:
        """The tensor's rows as stored [rows, bytes], in Hugging Face's order, some at a time."""
        tensor = self._gguf.tensors[self._table.gguf_name(name)]
        row, _, expert = self._table.entry(name)
        stored = np.frombuffer(self._gguf.raw(tensor.name), dtype=np.uint8)
        shape = tensor.shape
        if row.per_expert:
            stored, shape = stored.reshape(shape[0], -1)[expert], shape[1:]
        if len(shape) > 2:
            shape = (_elements(shape[:-1]), shape[-1])
        rows = shape[0]
        if len(shape) == 1 and tensor.kind not in ("F32", *_HALF_TYPES):
            rows = 1
        stored = stored.reshape(rows, -1)
        if self._table.gguf_packing(name) is not None:
            part = self._table.gguf_rows(name)
            # numbers one by one name copies
            stored = stored[part.start : part.stop] if isinstance(part, range) else stored[list(part)]
            rows, shape = len(part), (len(part), *shape[1:])
        if row.rotary_pairs:
            stored = _unpermute(stored, rows // self._head_dim)
        step = max(1, _CHUNK_ELEMENTS * rows // max(1, _elements(shape)))
        for start in range(0, rows, step):
            yield np.ascontiguousarray(stored[start : start + step])

    def _scale(self, name: str) -> np.float32 | None:
        """What all of a tensor is to be multiplied by; None for nothing."""
        tensor = self._gguf.tensors.get(scale_name(self._table.gguf_name(name)))
        if tensor is None or tensor.name in self._table.gguf_shapes:
            # of Gemma 4's experts it is a weight of its own
            return None
        place = self._table.entry(name)
        wanted = (self._gguf.tensors[self._table.gguf_name(name)].shape[0],) if place.row.per_expert else (1,)
        if tensor.kind != "F32" or tensor.shape != wanted:
            found = f"{tensor.kind} of shape {list(tensor.shape)}"
            raise UserError(f"{self._gguf.where}: {tensor.name} is {found}, not F32 of {list(wanted)}")
        scales = np.frombuffer(self._gguf.raw(tensor.name), dtype="<f4")
        return np.float32(scales[place.expert if place.row.per_expert else 0])

    def _check_readable(self, tensor: GGUFTensor) -> None:
        if tensor.kind == "F32" or tensor.kind in _HALF_TYPES:
            return
        try:
            dequantized(np.frombuffer(self._gguf.raw(tensor.name)[: _block_bytes(tensor.kind)], np.uint8), tensor.kind)
        except NotImplementedError as error:
            raise UserError(
                f"{self._gguf.where}: tensor '{tensor.name}' is stored as {tensor.kind}, which cannot be read"
            ) from error


def scale_name(weight: str) -> str:
    """What a GGUF file calls the scale of all of a weight."""
    return weight.removesuffix(".weight") + ".scale"


def input_scale_name(weight: str) -> str:
    """What it calls the scale of what the weight is multiplied by, where that is rounded too."""
    return weight.removesuffix(".weight") + ".input_scale"


def _floats(stored: npt.NDArray[np.uint8], kind: str, wide: bool) -> npt.NDArray[Any]:
    """Stored rows as float32; unless ``wide``, F16 and BF16 are left as they are, in bytes."""
    if kind == "F32":
        return stored.view("<f4")
    if kind in _HALF_TYPES and not wide:
        return stored
    return dequantized(stored, kind).astype("<f4", copy=False)


def dequantized(stored: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    """Whole blocks as floats. Raises NotImplementedError for a kind that the gguf package cannot undo."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(over="ignore", invalid="ignore"):
        floats: npt.NDArray[np.float32] = dequantize(stored, GGMLQuantizationType[kind])
    return floats


def _block_bytes(kind: str) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]


def _elements(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _unpermute(rows: npt.NDArray[np.uint8], heads: int) -> npt.NDArray[np.uint8]:
    """Rows of neighbouring rotary pairs (x0 y0 x1 y1 ...), head by head, as halves (x0 x1 ... y0 y1 ...)."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
