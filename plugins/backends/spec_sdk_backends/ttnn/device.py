"""The operations of the decode path on a Tenstorrent device: each is one of ``ttnn``, or a few.

Written from TT-NN's documentation, and run against a stand-in of it in torch only: no device was at hand. Device
tensors are [1, 1, R, columns] in tiles, caches [1, G, C, E].

Legend: see :mod:`spec_sdk_backends.ttnn.operations`.
"""

from __future__ import annotations

import atexit
import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk_backends.ttnn.operations import TILE, AttentionPart, DeviceTensor, Operations, padded


class DeviceOperations(Operations):
    """Opens device number ``index``, and closes it when the process ends. Raises UserError if it cannot be opened."""

    def __init__(self, dtype: torch.dtype, index: int) -> None:
        super().__init__(dtype)
        self._index = index
        # imported here and not above, so that the backend can be listed on machines without it
        self._ttnn: Any = importlib.import_module("ttnn")
        try:
            self._device = self._ttnn.open_device(device_id=index)
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise UserError(f"backend.index: ttnn cannot open device {index}: {reason}") from error
        atexit.register(self._ttnn.close_device, self._device)

    def describe(self) -> str:
        return f"Tenstorrent device {self._index}, ttnn"

    def to_device(self, x: torch.Tensor) -> DeviceTensor:
        rows, columns = x.shape
        # a single row, of a gain or a bias, stays one: it is broadcast
        more = 0 if rows == 1 else padded(rows) - rows
        return self._from_torch(torch.nn.functional.pad(x, (0, padded(columns) - columns, 0, more))[None, None])

    def _from_torch(self, x: torch.Tensor) -> DeviceTensor:
        ttnn = self._ttnn
        dtype = {torch.bfloat16: ttnn.bfloat16, torch.float32: ttnn.float32}[self.dtype]
        return ttnn.from_torch(x.to(self.dtype), dtype=dtype, layout=ttnn.TILE_LAYOUT, device=self._device)

    def to_host(self, x: DeviceTensor, rows: slice, columns: int) -> torch.Tensor:
        host: torch.Tensor = self._ttnn.to_torch(x)[0, 0, rows, :columns]
        return host.to(self.dtype)

    def columns(self, x: DeviceTensor, first: int, end: int) -> DeviceTensor:
        return self._ttnn.slice(x, [0, 0, 0, first], [1, 1, x.shape[2], end])

    def rms_norm(
        self, x_RM: DeviceTensor, gain_1M: DeviceTensor, eps: float, size: int, groups: int = 1
    ) -> DeviceTensor:
        ttnn, rows, width = self._ttnn, x_RM.shape[2], x_RM.shape[3]
        # the operation's mean is over padding too, which the gain and eps make good
        share = size * groups / width
        if share != 1:
            gain_1M = ttnn.multiply(gain_1M, math.sqrt(share))
        parts = ttnn.reshape(x_RM, (1, 1, rows * groups, width // groups)) if groups > 1 else x_RM
        normal = ttnn.rms_norm(parts, epsilon=eps * share, weight=gain_1M)
        return ttnn.reshape(normal, (1, 1, rows, width)) if groups > 1 else normal

    def linear(self, x_RI: DeviceTensor, weight_IO: DeviceTensor, bias_1O: DeviceTensor | None = None) -> DeviceTensor:
        return self._ttnn.linear(x_RI, weight_IO, bias=bias_1O)

    def gated(self, x_RM: DeviceTensor, gate_MF: DeviceTensor, up_MF: DeviceTensor) -> DeviceTensor:
        ttnn = self._ttnn
        return ttnn.multiply(ttnn.linear(x_RM, gate_MF, activation="silu"), ttnn.linear(x_RM, up_MF))

    def rotary(self, x_RHE: DeviceTensor, cos_RE: DeviceTensor, sin_RE: DeviceTensor) -> DeviceTensor:
        x_HRE = self._by_head(x_RHE, x_RHE.shape[3] // cos_RE.shape[3])
        return self._side_by_side(self._ttnn.experimental.rotary_embedding(x_HRE, cos_RE, sin_RE))

    def add(self, a_RM: DeviceTensor, b_RM: DeviceTensor) -> DeviceTensor:
        return self._ttnn.add(a_RM, b_RM)

    def new_cache(self, capacity: int, kv_heads: int, head_dim: int) -> DeviceTensor:
        return self._from_torch(torch.zeros(1, kv_heads, capacity, head_dim))

    def update_cache(self, cache: DeviceTensor, x_RGE: DeviceTensor, first: int, columns: Sequence[int]) -> None:
        for at in range(0, len(columns), TILE):
            row, width = first * TILE + at, x_RGE.shape[3]
            tile = self._ttnn.slice(x_RGE, [0, 0, row, 0], [1, 1, row + TILE, width])
            tile_GE = self._by_head(tile, cache.shape[1])
            for i, column in enumerate(columns[at : at + TILE]):
                self._ttnn.update_cache(cache, tile_GE, column, batch_offset=i)

    def move_in_cache(self, cache: DeviceTensor, sources: Sequence[int], column: int) -> None:
        _, G, _, E = cache.shape
        tiles = {source // TILE for source in sources}
        held = {t: self._ttnn.slice(cache, [0, 0, t * TILE, 0], [1, G, (t + 1) * TILE, E]) for t in tiles}
        for i, source in enumerate(sources):
            self._ttnn.update_cache(cache, held[source // TILE], column + i, batch_offset=source % TILE)

    def read_cache(self, cache: DeviceTensor) -> torch.Tensor:
        host_GCE: torch.Tensor = self._ttnn.to_torch(cache)[0]
        return host_GCE.transpose(0, 1).reshape(host_GCE.shape[1], -1)

    def write_cache(self, cache: DeviceTensor, content: torch.Tensor) -> None:
        if len(content):
            content_GCE = content.view(len(content), cache.shape[1], -1).transpose(0, 1)
            self._ttnn.fill_cache(cache, self._from_torch(content_GCE[None].contiguous()), 0)

    def attention(
        self,
        q_RHE: DeviceTensor,
        caches: Sequence[tuple[DeviceTensor, DeviceTensor]],
        parts: Sequence[AttentionPart],
        heads: int,
        kv_heads: int,
        scale: float,
    ) -> DeviceTensor:
        ttnn, width, attended = self._ttnn, q_RHE.shape[3], []
        for (k, v), part in zip(caches, parts, strict=True):
            rows = ttnn.slice(q_RHE, [0, 0, part.first * TILE, 0], [1, 1, part.end * TILE, width])
            end = [1, kv_heads, part.mask_QS.shape[3], width // heads]
            o_HRE = ttnn.transformer.scaled_dot_product_attention(
                self._by_head(rows, heads),
                ttnn.slice(k, [0, 0, 0, 0], end),
                ttnn.slice(v, [0, 0, 0, 0], end),
                attn_mask=part.mask_QS,
                is_causal=False,
                scale=scale,
            )
            attended.append(self._side_by_side(o_HRE))
        return attended[0] if len(attended) == 1 else ttnn.concat(attended, dim=2)

    def _by_head(self, x_RHE: DeviceTensor, heads: int) -> DeviceTensor:
        """[1, 1, R, H·E] → [1, H, R, E]."""
        rows, width = x_RHE.shape[2], x_RHE.shape[3]
        return self._ttnn.permute(self._ttnn.reshape(x_RHE, (1, rows, heads, width // heads)), (0, 2, 1, 3))

    def _side_by_side(self, x_HRE: DeviceTensor) -> DeviceTensor:
        """[1, H, R, E] → [1, 1, R, H·E]."""
        _, heads, rows, width = x_HRE.shape
        return self._ttnn.reshape(self._ttnn.permute(x_HRE, (0, 2, 1, 3)), (1, 1, rows, heads * width))
