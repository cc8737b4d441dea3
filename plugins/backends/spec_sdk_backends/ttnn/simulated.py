"""The operations of the decode path on Tenstorrent's functional simulator, tt-lang-sim.

Its ``ttnn`` has ``add``; the others are operations of ours in TT-Lang. It computes in the dtypes that tensors have.

Legend: see :mod:`spec_sdk_backends.ttnn.operations`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch

from spec_sdk_backends.ttnn.operations import KEY_TILES, TILE, AttentionPart, DeviceTensor, Operations, padded

WIDEST_BLOCK = (4 * TILE, 16 * TILE)
"""At least as large as any block whose dtype is not that of an operand."""


@cache
def load_simulator() -> ModuleType:
    """The simulator's ``ttnn``, imported once.

    Importing it makes ``torch.bfloat16`` and ``torch.float16`` names of float32 in the whole process, and its tensors
    of those dtypes float32 as well. That is undone at once: tensors are then computed in the dtypes that they have.
    """
    narrow = torch.bfloat16, torch.float16
    try:
        from ttl.sim import diagnostics, program, ttnn
        from ttl.sim.ttnnsim import set_disable_float32_promotion

        set_disable_float32_promotion(True)
    finally:
        torch.bfloat16, torch.float16 = narrow
    # the wheel lacks a file that it reads to print where in a kernel an error arose; the error itself says what it is
    diagnostics.lazy_import_diagnostics = lambda: _SilentDiagnostics()
    program.collect_reachable_analyses = _once_per_kernel(program.collect_reachable_analyses)
    return cast(ModuleType, ttnn)


def _once_per_kernel(analyse: Callable[[FunctionType, set[int]], Any]) -> Callable[[FunctionType, set[int]], Any]:
    """The simulator's look at a kernel's source, which takes most of a small call's time, once for each kernel.

    What it finds depends on the source only, as our kernels call no function that is handed to them.
    """
    known: dict[CodeType, Any] = {}

    def analyse_once(kernel: FunctionType, visited: set[int]) -> Any:
        code = kernel.__code__
        if code not in known:
            known[code] = analyse(kernel, visited)
        return known[code]

    return analyse_once


class _SilentDiagnostics:
    """Prints nothing, whatever it is asked to print."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: ""


class SimulatedOperations(Operations):
    """Needs tt-lang-sim. Sums and softmax statistics are kept in float32, whatever the dtype of the tensors."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._ttnn: Any = load_simulator()
        # they import the simulator's ttl, which may only be after it was loaded as above
        from spec_sdk_backends.ttnn.kernels import cache_rows, flash_decode, linear, norm, rotary

        self._cache_rows, self._flash_decode = cache_rows, flash_decode
        self._linear, self._norm, self._rotary = linear, norm, rotary
        self._wide = self._ttnn.from_torch(torch.zeros(WIDEST_BLOCK))
        self._constants: dict[float, DeviceTensor] = {}

    def describe(self) -> str:
        return f"TT-Lang's functional simulator {importlib.metadata.version('tt-lang-sim')}, no device"

    def to_device(self, x: torch.Tensor) -> DeviceTensor:
        return self._ttnn.from_torch(x.to(self.dtype), dtype=self.dtype)

    def to_host(self, x: DeviceTensor, rows: slice, columns: int) -> torch.Tensor:
        host: torch.Tensor = self._ttnn.to_torch(x)[rows, :columns]
        return host.clone()

    def columns(self, x: DeviceTensor, first: int, end: int) -> DeviceTensor:
        return x[0 : x.shape[0] // TILE, first // TILE : end // TILE]

    def rms_norm(
        self, x_RM: DeviceTensor, gain_1M: DeviceTensor, eps: float, size: int, groups: int = 1
    ) -> DeviceTensor:
        out = self._empty(*x_RM.shape)
        self._norm.rms_norm(x_RM, gain_1M, self._constant(1 / size), self._constant(eps), self._wide, out)
        return out

    def linear(self, x_RI: DeviceTensor, weight_IO: DeviceTensor, bias_1O: DeviceTensor | None = None) -> DeviceTensor:
        out = self._empty(x_RI.shape[0], weight_IO.shape[1])
        self._linear.linear(x_RI, weight_IO, bias_1O, self._wide, out)
        return out

    def gated(self, x_RM: DeviceTensor, gate_MF: DeviceTensor, up_MF: DeviceTensor) -> DeviceTensor:
        out = self._empty(x_RM.shape[0], gate_MF.shape[1])
        self._linear.gated(x_RM, gate_MF, up_MF, self._wide, out)
        return out

    def rotary(self, x_RHE: DeviceTensor, cos_RE: DeviceTensor, sin_RE: DeviceTensor) -> DeviceTensor:
        out = self._empty(*x_RHE.shape)
        self._rotary.rotary(x_RHE, cos_RE, sin_RE, out)
        return out

    def add(self, a_RM: DeviceTensor, b_RM: DeviceTensor) -> DeviceTensor:
        return self._ttnn.add(a_RM, b_RM)

    def new_cache(self, capacity: int, kv_heads: int, head_dim: int) -> DeviceTensor:
        return self.to_device(torch.zeros(capacity, kv_heads * head_dim))

    def update_cache(self, cache: DeviceTensor, x_RGE: DeviceTensor, first: int, columns: Sequence[int]) -> None:
        tiles = padded(len(columns)) // TILE
        self._replace(cache, x_RGE[first : first + tiles, 0 : x_RGE.shape[1] // TILE], range(len(columns)), columns)

    def move_in_cache(self, cache: DeviceTensor, sources: Sequence[int], column: int) -> None:
        first, end = sources[0] // TILE, sources[-1] // TILE + 1
        rows = [source - first * TILE for source in sources]
        columns = range(column, column + len(sources))
        self._replace(cache, cache[first:end, 0 : cache.shape[1] // TILE], rows, columns)

    def _replace(self, cache: DeviceTensor, source: DeviceTensor, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Put these rows of ``source`` into these columns of the cache, which are rows of its tensor."""
        first, end = min(columns) // TILE, max(columns) // TILE + 1
        at = torch.tensor(columns) - first * TILE
        keep = torch.ones((end - first) * TILE, 1)
        select = torch.zeros(len(keep), source.shape[0])
        keep[at], select[at, torch.tensor(rows)] = 0.0, 1.0
        kept = cache[first:end, 0 : cache.shape[1] // TILE]
        self._cache_rows.replace_rows(kept, source, self.to_device(keep), self.to_device(select), self._wide)

    def read_cache(self, cache: DeviceTensor) -> torch.Tensor:
        return self.to_host(cache, slice(None), cache.shape[1])

    def write_cache(self, cache: DeviceTensor, content: torch.Tensor) -> None:
        self._ttnn.to_torch(cache)[: len(content)] = content

    def attention(
        self,
        q_RHE: DeviceTensor,
        caches: Sequence[tuple[DeviceTensor, DeviceTensor]],
        parts: Sequence[AttentionPart],
        heads: int,
        kv_heads: int,
        scale: float,
    ) -> DeviceTensor:
        out, width, scale_tile = self._empty(*q_RHE.shape), q_RHE.shape[1] // TILE, self._constant(scale)
        for (k_SGE, v_SGE), part in zip(caches, parts, strict=True):
            assert part.mask_QS.shape[1] % (KEY_TILES * TILE) == 0, "a mask has whole chunks of keys"
            rows = slice(part.first, part.end), slice(0, width)
            self._flash_decode.flash_decode(
                q_RHE[rows], k_SGE, v_SGE, part.mask_QS, scale_tile, self._wide, out[rows], heads, kv_heads
            )
        return out

    def _empty(self, rows: int, columns: int) -> DeviceTensor:
        return self._ttnn.empty((rows, columns), dtype=self.dtype)

    def _constant(self, value: float) -> DeviceTensor:
        """A tile filled with ``value``, in float32."""
        if value not in self._constants:
            self._constants[value] = self._ttnn.from_torch(torch.full((TILE, TILE), value))
        return self._constants[value]
