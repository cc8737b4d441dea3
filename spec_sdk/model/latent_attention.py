"""Attention to latents (MLA): the cache has one vector of a token, of which all heads' K and V are made (DeepSeek-V2,
arXiv:2405.04434, §2.1).

What makes K of a latent is applied to Q instead, and what makes V of it to what attention gives (§2.1.2). So attention
is that of H query heads to one KV head, whose values are its keys, and every kernel for attention computes it.

Legend: B requests, N rows of a request, M model dim, H query heads, X dims of a head of Q, P those of them without
rotary positions, R dims of a latent, D = R + rotated dims, V dims of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.config import LatentAttention
from spec_sdk.model.decoder import Decoder, Rotations
from spec_sdk.model.kv_cache import KVCache, is_exact
from spec_sdk.model.latent_projections import LatentProjections, by_head
from spec_sdk.model.rope import rotate
from spec_sdk.model.rounded_kv_cache import RoundedKVCache
from spec_sdk.ops.linear import Projection


class LatentDecoder(Decoder):
    """A decoder whose blocks attend to latents (:class:`~spec_sdk.model.config.LatentAttention`).

    Its blocks are not stacked, so that a group of layers runs one after the other.
    """

    fuses_groups = False

    @property
    def latent(self) -> LatentAttention:
        assert self.config.latent is not None
        return self.config.latent

    def latents_of(self, layer: int) -> LatentProjections:
        """What a block has for it."""
        found = self.blocks[layer].latents
        assert found is not None
        return found

    @property
    def projections(self) -> list[Projection]:
        of_latents = [self.latents_of(layer).projections for layer in range(self.layers)]
        return [*(part for parts in of_latents for part in parts), *super().projections]

    def subset(self, layers: Sequence[int]) -> Decoder:
        return self._subset_as(LatentDecoder, layers)

    def new_cache(self, form: str = "exact") -> KVCache:
        if form == "int8":
            raise UserError("model.kv_cache: a cache of latents is not in int8; use bfloat16 or auto")
        kind = KVCache if is_exact(form, self.dtype) else RoundedKVCache
        return kind(self.layers, 1, self.latent.width, self.device, self.dtype, values=False)

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, N, H, D], and k [B, N, 1, D], which is v, too."""
        w, of, latent = self.blocks[layer], self.latents_of(layer), self.latent
        x_BNM = self.attention_input(layer, h_BNM, work)
        query, latent_BND = w.qkv(x_BNM), of.latents(x_BNM)
        if of.queries is not None:
            query = of.queries(self._normed(query, of.query_norm))
        query_BNHX = query.view(*query.shape[:2], -1, latent.qk_head_dim)
        query_BNHP, turned_BNHY = query_BNHX.tensor_split((latent.qk_nope_head_dim,), -1)
        latent_BNR, shared_BNY = latent_BND.tensor_split((latent.kv_lora_rank,), -1)
        cos_BN1Y, sin_BN1Y = self.rotation(layer, work)
        q_BNHD = torch.cat((by_head(of.keys, query_BNHP), rotate(turned_BNHY, cos_BN1Y, sin_BN1Y)), -1)
        normed_BN1R = self._norm(latent_BNR.contiguous(), of.latent_norm_R)[:, :, None]
        k_BN1D = torch.cat((normed_BN1R, rotate(shared_BNY[:, :, None], cos_BN1Y, sin_BN1Y)), -1)
        return q_BNHD, k_BN1D, k_BN1D

    def project(self, layer: int, o_BNHD: torch.Tensor) -> torch.Tensor:
        o_BNHR = o_BNHD[..., : self.latent.kv_lora_rank].to(self.dtype)
        return self.blocks[layer].output(by_head(self.latents_of(layer).values, o_BNHR).flatten(2))
