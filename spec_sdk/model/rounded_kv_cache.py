"""The KV cache in bfloat16 beside a decoder in float32: half the memory, and half as much to read.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.kv_cache import KVCache
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.rounded_pass_cache import RoundedPassCache


class RoundedKVCache(KVCache):
    """K and V in bfloat16; ``dtype`` is what a pass reads them as."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        values: bool = True,
    ) -> None:
        super().__init__(layers, kv_heads, head_dim, device, torch.bfloat16, values=values)
        self._dtype = dtype

    def of_pass(self, inputs: PassInputs) -> RoundedPassCache:
        return RoundedPassCache(self.k_LSGCD, self.v_LSGCD, inputs, self._dtype)
