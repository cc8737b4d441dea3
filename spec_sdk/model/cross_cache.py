"""The cache of an encoder–decoder model: beside a slot's tokens, the K and V of what its encoder said.

Legend: L layers, S slots, H heads, C capacity of a slot, F states of the encoder, D head dim.
"""

from __future__ import annotations

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.kv_cache import KVCache, enlarged, no_memory
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.pass_inputs import PassInputs


class CrossCache(KVCache):
    """A KV cache with F more keys and values per slot and layer, which every row of the slot's request sees.

    They are written once per request (:meth:`write_encoded`) and moved by no commit.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, frames: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(layers, heads, head_dim, device, dtype)
        shape = (layers, 0, heads, frames, head_dim)
        self.cross_k_LSHFD = torch.empty(shape, device=device, dtype=dtype)
        self.cross_v_LSHFD = torch.empty(shape, device=device, dtype=dtype)
        self._encoded: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of K and V together, those of the encoder's states among them."""
        return super().nbytes + 2 * self.cross_k_LSHFD.numel() * self.cross_k_LSHFD.element_size()

    def reserve(self, slots: int, capacity: int) -> None:
        layers, there, heads, frames, dim = self.cross_k_LSHFD.shape
        if slots > there:
            try:
                self.cross_k_LSHFD, self.cross_v_LSHFD = (
                    enlarged(self.cross_k_LSHFD, slots, frames),
                    enlarged(self.cross_v_LSHFD, slots, frames),
                )
            except (RuntimeError, MemoryError) as error:
                raise no_memory(self.cross_k_LSHFD, slots, frames, "encoder states") from error
        super().reserve(slots, capacity)

    def write_encoded(self, slot: int, layer: int, k_HFD: torch.Tensor, v_HFD: torch.Tensor) -> None:
        """Store one layer's K and V of a request's encoder states; its slot must have been reserved."""
        self.cross_k_LSHFD[layer, slot].copy_(k_HFD)
        self.cross_v_LSHFD[layer, slot].copy_(v_HFD)
        self._encoded.add(slot)

    def of_pass(self, inputs: PassInputs) -> CrossPassCache:
        """The cache as one pass writes and reads it. Raises UserError for a request whose input was not encoded."""
        if not all(part.slot in self._encoded for part in inputs.parts):
            raise UserError("the model is an encoder-decoder, and this request has no audio for its encoder")
        return CrossPassCache(self, inputs)


class CrossPassCache(PassCache):
    """A :class:`CrossCache` in one pass."""

    def __init__(self, cache: CrossCache, inputs: PassInputs) -> None:
        super().__init__(cache.k_LSGCD, cache.v_LSGCD, inputs)
        self._cache = cache

    def of_pass(self, inputs: PassInputs) -> CrossPassCache:
        return CrossPassCache(self._cache, inputs)

    def encoded(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [S, H, F, D] of the slots' encoder states in one layer."""
        return self._cache.cross_k_LSHFD[layer], self._cache.cross_v_LSHFD[layer]
