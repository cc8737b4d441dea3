"""A KV cache in fewer bits of floating point than a pass computes in, as one pass writes and reads it.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, B requests, N rows of a request, K keys that a
request sees, g layers of a group.
"""

from __future__ import annotations

import torch

from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs


class RoundedPassCache(PassCache):
    """K and V are rounded to the dtype of ``k_LSGCD`` as they are written, and read in ``dtype``, the pass's own.

    Rows of the pass itself are read as rounded: what a token sees of another does not depend on the pass it came in.
    A kernel that takes K and V in the dtype they are stored in may read and write :meth:`layers` in place.
    """

    in_place = False

    def __init__(self, k_LSGCD: torch.Tensor, v_LSGCD: torch.Tensor, inputs: PassInputs, dtype: torch.dtype) -> None:
        super().__init__(k_LSGCD, v_LSGCD, inputs)
        self._dtype = dtype

    def of_pass(self, inputs: PassInputs) -> RoundedPassCache:
        return RoundedPassCache(self._k_LSGCD, self._v_LSGCD, inputs, self._dtype)

    def keys_values(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of K and V [g, G, K, D] that request number ``index`` of the pass sees."""
        k_gGKD, v_gGKD = super().keys_values(index, first, end)
        return k_gGKD.to(self._dtype), v_gGKD.to(self._dtype)

    def stored(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same in the memory and the dtype that they are in."""
        return super().keys_values(index, first, end)

    def write(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        stored = self._k_LSGCD.dtype
        super().write(first, k_gBNGD.to(stored), v_gBNGD.to(stored))
