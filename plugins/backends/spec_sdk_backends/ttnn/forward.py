"""One pass on TT-NN: where every request's rows lie, what they see, and the stages of a block on all of them.

Legend: R rows of the pass, each request's filled up to tiles, n live rows of a request, M model dim, H query heads,
G KV heads, E padded head dim, S keys, filled up to chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from spec_sdk.model.config import Rope
from spec_sdk.model.rope import RotaryTable
from spec_sdk.ops.pass_inputs import PassInputs, PassPart
from spec_sdk_backends.ttnn.cache import TtnnCache
from spec_sdk_backends.ttnn.model import TtnnModel
from spec_sdk_backends.ttnn.operations import HIDDEN, KEY_TILES, TILE, AttentionPart, DeviceTensor, padded


@dataclass(frozen=True)
class Band:
    """A request's rows: row tiles ``first`` … ``end - 1`` of the pass, of which those of ``part`` are live."""

    part: PassPart
    first: int
    end: int

    @property
    def rows(self) -> slice:
        """Its live rows."""
        return slice(self.first * TILE, self.first * TILE + self.part.live)


class TtnnPass:
    """``inputs`` on ``cache``; ``hidden``: the states of the layers ``taps``, as they were recorded."""

    def __init__(self, model: TtnnModel, inputs: PassInputs, cache: TtnnCache, taps: Collection[int]) -> None:
        self.model, self.inputs, self.cache = model, inputs, cache
        self.bands: list[Band] = []
        for part in inputs.parts:
            first = self.bands[-1].end if self.bands else 0
            self.bands.append(Band(part, first, first + padded(part.live) // TILE))
        self.rows = self.bands[-1].end * TILE
        self.hidden: dict[int, DeviceTensor] = {}
        self._taps = frozenset(taps)
        self._rotations: dict[Rope, tuple[DeviceTensor, DeviceTensor]] = {}
        self._parts: dict[int | None, list[AttentionPart]] = {}

    def embedded(self) -> DeviceTensor:
        """The embeddings of all rows [R, M]; zeros for padding."""
        embedding_VM = self.model.embedding_VM
        h_RM = embedding_VM.new_zeros(self.rows, embedding_VM.shape[1])
        for band in self.bands:
            h_RM[band.rows] = embedding_VM[self.inputs.token_BN[band.part.index, : band.part.live].long()]
        return self.model.operations.to_device(h_RM)

    def record(self, layer: int, h_RM: DeviceTensor) -> None:
        """Keep ``h_RM`` if its layer was asked for."""
        if layer in self._taps:
            self.hidden[layer] = h_RM

    def queries(self, layer: int, h_RM: DeviceTensor) -> DeviceTensor:
        """The queries [R, H·E] of a layer, its keys and values written."""
        q_RHE, k_RGE, v_RGE = self.qkv(layer, h_RM)
        self.write_kv(layer, k_RGE, v_RGE)
        return q_RHE

    def qkv(self, layer: int, h_RM: DeviceTensor) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor]:
        """q [R, H·E], k and v [R, G·E] of a layer; nothing is written."""
        return self.model.qkv(layer, h_RM, self._rotation(self.model.kinds[layer].rope))

    def write_kv(self, layer: int, k_RGE: DeviceTensor, v_RGE: DeviceTensor) -> None:
        """Put the keys and values of all requests' rows into the cache."""
        for band in self.bands:
            part = band.part
            columns = range(part.write_at, part.write_at + part.live)
            for cache, new_RGE in ((self.cache.k, k_RGE), (self.cache.v, v_RGE)):
                self.model.operations.update_cache(cache[part.slot][layer], new_RGE, band.first, columns)

    def attend(self, layer: int, q_RHE: DeviceTensor, bands: Sequence[Band] | None = None) -> DeviceTensor:
        """Attention [R, H·E] of every row over the keys that it sees. ``bands``: only of these requests; what is
        returned for the others' rows means nothing.
        """
        bands = self.bands if bands is None else bands
        config, attention = self.model.config, self.model.kinds[layer].attention
        slots, parts = [band.part.slot for band in bands], self.parts(attention.window)
        return self.model.operations.attention(
            q_RHE,
            [(self.cache.k[slot][layer], self.cache.v[slot][layer]) for slot in slots],
            [parts[self.bands.index(band)] for band in bands],
            config.num_heads,
            config.num_kv_heads,
            attention.scale_for(config.head_dim),
        )

    def parts(self, window: int | None) -> list[AttentionPart]:
        """Every request's rows and mask in layers with such a window. Masks are made once a pass."""
        if window not in self._parts:
            self._parts[window] = [AttentionPart(band.first, band.end, self._mask(band, window)) for band in self.bands]
        return self._parts[window]

    def _mask(self, band: Band, window: int | None) -> DeviceTensor:
        seen = band.part.mask
        bias_nS = replace(seen, window=window, _windowed={}, _bias={}).bias_QS(torch.float32, 1)
        rows, keys = (band.end - band.first) * TILE, padded(seen.keys, KEY_TILES * TILE)
        mask_QS = torch.full((rows, keys), HIDDEN)
        mask_QS[: len(bias_nS), : seen.keys] = bias_nS.clamp_min(HIDDEN)
        return self.model.operations.to_device(mask_QS)

    def _rotation(self, rope: Rope) -> tuple[DeviceTensor, DeviceTensor]:
        """Cosines and sines [R, E] of all rows."""
        if rope not in self._rotations:
            ops, head_dim = self.model.operations, self.model.config.head_dim
            position_R = torch.zeros(self.rows, dtype=torch.int64)
            for band in self.bands:
                position_R[band.rows] = self.inputs.position_BN[band.part.index, : band.part.live].long()
            table = RotaryTable(head_dim, rope, torch.device("cpu"), ops.dtype)
            cos, sin = table.at(position_R[None], int(position_R.max()) + 1)
            self._rotations[rope] = self._both_halves(cos[0, :, 0]), self._both_halves(sin[0, :, 0])
        return self._rotations[rope]

    def _both_halves(self, x_RD: torch.Tensor) -> DeviceTensor:
        """[R, D] → [R, E], with zeros behind each half."""
        half, full = x_RD.shape[1] // 2, self.model.head_dim // 2
        spread = torch.nn.functional.pad(x_RD.reshape(-1, 2, half), (0, full - half))
        return self.model.operations.to_device(spread.reshape(len(x_RD), 2 * full))
