"""The static KV cache as one pass writes and reads it.

Legend: L layers, S slots, G KV heads, C capacity of a slot, D head dim, B requests, N rows of a request, n live rows,
K keys that a request sees, g layers of a group.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any, ClassVar

import torch

from spec_sdk.ops.pass_inputs import PassInputs


class PassCache:
    """All layers' ``k_LSGCD`` and ``v_LSGCD``, a slot for each request, and the inputs of the pass.

    Operations that take one request after the other go through views that are made once for all layers; a kernel takes
    :meth:`layers` and the inputs' tensors.

    ``made``: what an operation makes of the inputs once for all layers, under a key of its own. It is here and not with
    the inputs because a captured pass makes it anew in every replay, of inputs that lie in the same place.
    """

    in_place: ClassVar[bool] = True
    """Whether K and V lie in memory as attention takes them: a kernel may then read and write :meth:`layers`.

    If not, :meth:`write` stores them, :meth:`keys_values` makes copies, and there are no :meth:`layers`, or they are in
    another dtype than the pass.
    """

    def __init__(self, k_LSGCD: torch.Tensor, v_LSGCD: torch.Tensor, inputs: PassInputs) -> None:
        self.inputs = inputs
        self.made: dict[Hashable, Any] = {}
        self._k_LSGCD = k_LSGCD
        self._v_LSGCD = v_LSGCD

    def of_pass(self, inputs: PassInputs) -> PassCache:
        """The same cache for another pass, such as a part of this one."""
        return PassCache(self._k_LSGCD, self._v_LSGCD, inputs)

    def layers(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [g, S, G, C, D] of layers ``first`` … ``end - 1``."""
        return self._k_LSGCD[first:end], self._v_LSGCD[first:end]

    def keys_values(self, index: int, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [g, G, K, D] that request number ``index`` of the pass sees, in layers ``first`` … ``end - 1``."""
        views = self._views[index]
        if end - first == 1:
            return views.key_L[first], views.value_L[first]
        return views.k_LGKD[first:end], views.v_LGKD[first:end]

    def write(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        """Store the pass's keys and values of the g layers from ``first`` on; padding is not stored."""
        if self._k_LSGCD.device.type == "cpu" and self.inputs.host_knows:
            self.write_by_request(first, k_gBNGD, v_gBNGD)
        else:
            self.write_by_index(first, k_gBNGD, v_gBNGD)

    def write_by_request(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        """:meth:`write`, one request after the other."""
        for part, views in zip(self.inputs.parts, self._views, strict=True):
            for i in range(k_gBNGD.shape[0]):
                views.new_key_L[first + i].copy_(k_gBNGD[i, part.index, : part.live].transpose(0, 1))
                views.new_value_L[first + i].copy_(v_gBNGD[i, part.index, : part.live].transpose(0, 1))

    def write_by_index(self, first: int, k_gBNGD: torch.Tensor, v_gBNGD: torch.Tensor) -> None:
        """:meth:`write`, all requests and layers at once, and without a value that only the device has: padding repeats
        a request's last live row, in its place.
        """
        inputs = self.inputs
        row_N = torch.arange(inputs.width, device=inputs.slot_B.device)
        row_BN = torch.minimum(row_N, inputs.live_B[:, None] - 1).long()
        column_BN = inputs.write_at_B[:, None].long() + row_BN
        slot_B1 = inputs.slot_B[:, None].long()
        for storage, new_gBNGD in ((self._k_LSGCD, k_gBNGD), (self._v_LSGCD, v_gBNGD)):
            repeated_gBNGD = new_gBNGD.gather(2, row_BN[None, :, :, None, None].expand_as(new_gBNGD))
            group_gSGCD = storage[first : first + new_gBNGD.shape[0]]
            # dimensions that are indexed by tensors come first
            group_gSGCD[:, slot_B1, :, column_BN] = repeated_gBNGD.permute(1, 2, 0, 3, 4)

    @cached_property
    def _views(self) -> list[_RequestViews]:
        return [
            _RequestViews(
                self._k_LSGCD[:, part.slot], self._v_LSGCD[:, part.slot], part.write_at, part.live, part.mask.keys
            )
            for part in self.inputs.parts
        ]


class _RequestViews:
    """One request's slot: what it sees, and where its new rows go, layer by layer."""

    def __init__(self, k_LGCD: torch.Tensor, v_LGCD: torch.Tensor, write_at: int, live: int, keys: int) -> None:
        self.k_LGKD, self.v_LGKD = k_LGCD[:, :, :keys], v_LGCD[:, :, :keys]
        self.key_L, self.value_L = self.k_LGKD[:, None].unbind(0), self.v_LGKD[:, None].unbind(0)
        rows = slice(write_at, write_at + live)
        self.new_key_L, self.new_value_L = k_LGCD[:, :, rows].unbind(0), v_LGCD[:, :, rows].unbind(0)
