"""A decoder in which some layers carry a state in the place of attention (Qwen 3 Next, Qwen 3.5, LFM2, Granite 4), or
all of them beside it (Falcon H1), or have a state, attention or an MLP alone (Nemotron H).

The four stages that runners call are :class:`~spec_sdk.model.decoder.Decoder`'s. A recurrent layer's ``pre_attention``
gives what its input projection does as q, and no k or v; with attention beside the state, Q behind that, and K and V.

Legend: B requests, N rows of a request, M model dim, X outputs of a projection, Y those of a mixer, H query heads,
G KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from spec_sdk.errors import UserError
from spec_sdk.model.decoder import ForwardPass, Rotations
from spec_sdk.model.gated_attention import GatedAttention
from spec_sdk.model.kv_cache import is_exact
from spec_sdk.model.recurrent.cache import RecurrentCache, RecurrentPassCache
from spec_sdk.model.recurrent.state import BEHIND
from spec_sdk.ops.linear import Projection


class RecurrentDecoder(GatedAttention):
    """Its blocks are not stacked, so that a group of layers runs one after the other.

    ``takes_snapshots``: whether its caches do (:class:`~spec_sdk.model.recurrent.cache.RecurrentCache`).
    """

    takes_snapshots = True
    deepest_tree = BEHIND

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.mixers = {layer: block.mixer for layer, block in enumerate(self.blocks) if block.mixer is not None}
        self.attending = [layer for layer, block in enumerate(self.blocks) if block.attends]
        self.fuses_groups = False

    @property
    def projections(self) -> list[Projection]:
        return [part for whole in super().projections for part in whole.parts]

    @property
    def data_dependent(self) -> str | None:
        """Its rows are folded into the states as a text grows."""
        return super().data_dependent or "recurrent layers"

    def subset(self, layers: Sequence[int]) -> RecurrentDecoder:
        return self._subset_as(RecurrentDecoder, layers)

    def new_cache(self, form: str = "exact") -> RecurrentCache:
        if not is_exact(form, self.dtype):
            raise UserError("model.kv_cache: the cache of a model with recurrent layers is in model.dtype; use auto")
        c = self.config
        shape = c.num_kv_heads, c.head_dim
        return RecurrentCache(self.mixers, self.attending, *shape, self.device, self.dtype, self.takes_snapshots)

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q is [B, N, 1, X] of a recurrent layer, with attention beside the state [B, N, 1, X + H·D], and [B, N, 1, 0]
        of a layer with an MLP alone.
        """
        block = self.blocks[layer]
        if not block.qkv.parts:
            none_BN0X = h_BNM[:, :, None, :0]
            return none_BN0X, none_BN0X, none_BN0X
        if layer not in self.mixers:
            return super().pre_attention(layer, h_BNM, work)
        projected_BNX = block.qkv(self.attention_input(layer, h_BNM, work))
        if not block.attends:
            none_BN0X = projected_BNX[:, :, None][:, :, :0]
            return projected_BNX[:, :, None], none_BN0X, none_BN0X
        projected_BNX, qkv = projected_BNX.tensor_split((block.qkv.parts[0].outputs,), -1)
        q_BNHD, k_BNGD, v_BNGD = self.heads(layer, qkv, work)
        return torch.cat((projected_BNX, q_BNHD.flatten(2)), -1)[:, :, None], k_BNGD, v_BNGD

    def write_kv(self, layer: int, k_BNGD: torch.Tensor, v_BNGD: torch.Tensor, work: ForwardPass) -> None:
        if self.blocks[layer].attends:
            super().write_kv(layer, k_BNGD, v_BNGD, work)

    def attend(self, layer: int, q_BNHD: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        """Of a recurrent layer what its rows get of those before them [B, N, 1, Y], which it writes to its state; with
        attention beside the state [B, N, 1, Y + H·D].
        """
        if not self.blocks[layer].qkv.parts:
            return q_BNHD
        if layer not in self.mixers:
            return super().attend(layer, q_BNHD, work)
        projected_BNX, block = q_BNHD[:, :, 0], self.blocks[layer]
        if not block.attends:
            return self._mixed(layer, projected_BNX, work)
        projected_BNX, q_BNX = projected_BNX.tensor_split((block.qkv.parts[0].outputs,), -1)
        q_BNHD = q_BNX.contiguous().view(*q_BNX.shape[:2], -1, self.config.head_dim)
        attended_BN1X = super().attend(layer, q_BNHD, work).flatten(2)[:, :, None]
        return torch.cat((self._mixed(layer, projected_BNX, work), attended_BN1X.to(q_BNX.dtype)), -1)

    def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        if not self.blocks[layer].output.parts:
            return o_BNHD.new_zeros((*o_BNHD.shape[:2], self.config.hidden_size))
        return super().project(layer, o_BNHD)

    def _mixed(self, layer: int, projected_BNX: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        mixer, cache = self.mixers[layer], work.cache
        assert isinstance(cache, RecurrentPassCache)
        outputs = []
        for part in work.inputs.parts:
            state, paths = cache.state(layer, part.slot), cache.paths(part)
            mixed_NY = mixer(projected_BNX[part.index, : part.live], state, paths, work.ops)
            outputs.append(F.pad(mixed_NY, (0, 0, 0, projected_BNX.shape[1] - part.live)))
        return torch.stack(outputs)[:, :, None]
