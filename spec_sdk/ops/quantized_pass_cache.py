"""A KV cache in 8 bits as one pass writes and reads it.

Legend: S slots, G KV heads, C capacity of a slot, D head dim, B requests, N rows of a request, K keys that a request
sees, g layers of a group.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs

LARGEST_CODE = 127


class QuantizedPassCache(PassCache):
    """Rows of K and V are rounded as they are written, and expanded to ``dtype`` as they are read.

    A row of a head is int8 codes [D] and one float16 scale, in ``codes`` and, as rows of length 1, in ``scales``. Rows
    of the pass itself are read as rounded: what a token sees of another does not depend on the pass it came in.
    """

    in_place = False

    def __init__(self, codes: PassCache, scales: PassCache, dtype: torch.dtype) -> None:
        self.inputs = codes.inputs
        self.made = {}
        self._codes, self._scales, self._dtype = codes, scales, dtype

    def of_pass(self, inputs: PassInputs) -> QuantizedPassCache:
        return QuantizedPassCache(self._codes.of_pass(inputs), self._scales.of_pass(inputs), self._dtype)

    def layers(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises ValueError: a kernel that took the codes for K and V, or wrote to a copy, would be silently wrong."""
        raise ValueError("a KV cache in 8 bits cannot be used in place: ask for PassCache.in_place first")

    def keys_values(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [g, G, K, D] that request number ``index`` of the pass sees, expanded."""
        return self._expanded(self._codes.keys_values(index, first, end), self._scales.keys_values(index, first, end))

    def write(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        k_codes, k_scales = rounded(k_gBNGD)
        v_codes, v_scales = rounded(v_gBNGD)
        self._codes.write(first, k_codes, v_codes)
        self._scales.write(first, k_scales, v_scales)

    def _expanded(
        self, codes: tuple[torch.Tensor, torch.Tensor], scales: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (k, v), (k_scale, v_scale) = codes, scales
        return (k.float() * k_scale).to(self._dtype), (v.float() * v_scale).to(self._dtype)


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [..., D] as int8 codes [..., D] and float16 scales [..., 1]."""
    x = x.float()
    scale = (x.abs().amax(-1, keepdim=True) / LARGEST_CODE).half()
    # the scale as it is stored, which is 0 for rows of nothing
    inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
    return (x * inverse).round().clamp_(-LARGEST_CODE, LARGEST_CODE).to(torch.int8), scale
