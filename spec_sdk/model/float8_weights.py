"""Matrices that a checkpoint stores as 8-bit floating point (FP8, E4M3) with scales: read as float32.

The matrix ``NAME`` is times ``NAME_scale_inv`` (as DeepSeek and Qwen publish theirs) or ``NAME_scale`` (as
compressed-tensors, ModelOpt and FBGEMM write it): one number for all of it, one for each row, or one for each block of
rows and columns.

Legend: R rows, C columns, B blocks of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.quantization_config import weights_of_groups
from spec_sdk.model.safetensors_reader import TensorFiles

FLOAT8 = "F8_E4M3"
SCALES = ("_scale_inv", "_scale")
BLOCK = (128, 128)
"""Rows and columns that have a scale in common where config.json does not say."""
METHODS = ("fp8", "fbgemm_fp8")


def is_float8(quantization: Mapping[str, Any]) -> bool:
    """Whether config.json's ``quantization_config`` says that weights are FP8, in one of the forms that are read."""
    method = quantization.get("quant_method")
    if method == "modelopt":
        return quantization.get("quant_algo") == "FP8"
    if method != "compressed-tensors":
        return method in METHODS
    weights = weights_of_groups(quantization)
    return bool(weights) and all((said.get("type"), said.get("num_bits")) == ("float", 8) for said in weights)


def block_of(quantization: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a block with one scale."""
    said = [quantization.get("weight_block_size")]
    for size in said + [weights.get("block_structure") for weights in weights_of_groups(quantization)]:
        if isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
            return size[0], size[1]
    return BLOCK


class Float8Weights:
    """The tensors of ``files``, FP8 matrices among them as float32 under their own names, without their scales.

    ``block``: rows and columns with one scale, where there are blocks. Raises UserError for a matrix whose scales are
    not there or do not fit it.
    """

    def __init__(self, files: TensorFiles, block: tuple[int, int] = BLOCK) -> None:
        self._files, self._block = files, block
        self.where = files.where
        shapes = dict(files.shapes)
        self._scales: dict[str, tuple[str, tuple[int, int]]] = {}
        for name in [name for name in shapes if files.dtype(name) == FLOAT8]:
            scale = next((name + ending for ending in SCALES if name + ending in shapes), None)
            if scale is not None:
                self._scales[name] = scale, self._block_of(name, scale)
                del shapes[scale]
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as stored, memory-mapped, or expanded. Raises KeyError for an unknown name."""
        if name not in self._scales:
            return self._files.tensor(name)
        return self._scaled(self._files.tensor(name), name, range(self.shapes[name][0]), range(self.shapes[name][1]))

    def part(self, name: str, rows: range, columns: range | None = None) -> torch.Tensor:
        """Some rows, and of each maybe only some columns: nothing else is read but scales.

        Raises KeyError for an unknown name, UserError for a file that was torn since it was opened.
        """
        part_RC = self._files.part(name, rows, columns)
        if name not in self._scales:
            return part_RC
        return self._scaled(part_RC, name, rows, columns or range(self.shapes[name][1]))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises KeyError for an unknown name."""
        return self.shapes[name]

    def dtype(self, name: str) -> str:
        """The safetensors dtype in which a tensor is read. Raises KeyError for an unknown name."""
        return "F32" if name in self._scales else self._files.dtype(name)

    def check_floating(self, names: Iterable[str]) -> None:
        """Raise UserError if one of ``names`` is stored as neither ordinary floating point nor FP8 with scales."""
        self._files.check_floating(name for name in names if name not in self._scales)

    def _block_of(self, name: str, scale: str) -> tuple[int, int]:
        """Rows and columns of this matrix that have a scale in common."""
        self._files.check_floating((scale,))
        shape, given = self._files.shape(name), self._files.shape(scale)
        if len(shape) == 2:
            if given in ((), (1,), (1, 1)):
                return shape[0], shape[1]
            if given in ((shape[0],), (shape[0], 1)):
                return 1, shape[1]
            if given == tuple(-(-length // size) for length, size in zip(shape, self._block, strict=True)):
                return self._block
        raise UserError(f"{self.where}: '{scale}' of shape {list(given)} does not fit '{name}' of {list(shape)}")

    def _scaled(self, part_RC: torch.Tensor, name: str, rows: range, columns: range) -> torch.Tensor:
        scale, (height, width) = self._scales[name]
        blocks = -(-self.shapes[name][0] // height), -(-self.shapes[name][1] // width)
        scale_BB = self._files.tensor(scale).float().reshape(blocks)
        row_R = torch.arange(rows.start, rows.stop) // height
        column_C = torch.arange(columns.start, columns.stop) // width
        return part_RC.float() * scale_BB[row_R[:, None], column_C]
