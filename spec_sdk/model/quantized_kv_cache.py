"""The KV cache in 8 bits: half of bfloat16's memory, a quarter of float32's.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.kv_cache import KVCache
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.quantized_pass_cache import LARGEST_CODE, QuantizedPassCache


class QuantizedKVCache(KVCache):
    """K and V as int8 codes, with a float16 scale for every row of a head; ``dtype`` is what a pass reads them as."""

    storages = (*KVCache.storages, "k_scale_LSGC1", "v_scale_LSGC1")

    def __init__(self, layers: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(layers, kv_heads, head_dim, device, torch.int8)
        self.k_scale_LSGC1 = torch.empty((layers, 1, kv_heads, 0, 1), device=device, dtype=torch.float16)
        self.v_scale_LSGC1 = torch.empty_like(self.k_scale_LSGC1)
        self._dtype = dtype

    def of_pass(self, inputs: PassInputs) -> QuantizedPassCache:
        codes = PassCache(self.k_LSGCD, self.v_LSGCD, inputs)
        scales = PassCache(self.k_scale_LSGC1, self.v_scale_LSGC1, inputs)
        return QuantizedPassCache(codes, scales, self._dtype)

    def rows_of(self, layer: int, slot: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        k_GnD, v_GnD = super().rows_of(layer, slot, first, end)
        k_scale_Gn1, v_scale_Gn1 = (s[layer, slot, :, first:end] for s in (self.k_scale_LSGC1, self.v_scale_LSGC1))
        return (k_GnD.float() * k_scale_Gn1).to(self._dtype), (v_GnD.float() * v_scale_Gn1).to(self._dtype)

    def fill_with_noise(self) -> None:
        for codes in (self.k_LSGCD, self.v_LSGCD):
            codes.random_(-LARGEST_CODE, LARGEST_CODE + 1)
        for scales in (self.k_scale_LSGC1, self.v_scale_LSGC1):
            scales.fill_(3 / LARGEST_CODE)
