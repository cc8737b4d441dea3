"""The operations of the decode path, one by one: all that the executor asks of TT-NN.

Two adapters implement them: :mod:`~spec_sdk_backends.ttnn.simulated` where tt-lang-sim is installed, with operations in
TT-Lang for those that its ``ttnn`` lacks, and :mod:`~spec_sdk_backends.ttnn.device` where the real ``ttnn`` is.

A *device tensor* is the adapter's own, of two dimensions, padded with zeros to whole tiles of 32 × 32. Rows of several
requests lie in one tensor, each request's from a tile's first row on. A head's dimensions are padded so that both
halves are whole tiles (:func:`padded_head`): rotation pairs dimension i with i + E/2.

Embeddings are looked up on the host, and the next token is chosen there.

Legend: R rows of a pass, tiles filled up; M model dim, I, O columns in and out, F MLP dim; H query heads, G KV heads,
E padded head dim, C capacity of a cache, S keys in whole tiles; all but D (head dim) padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

TILE = 32
"""Rows and columns of a tile."""
KEY_TILES = 4
"""Tiles of keys that attention takes at once: a cache's capacity and a mask's width are whole numbers of them."""
HIDDEN = -1e30
"""What a mask has where a key is hidden: not -inf, of which the difference of two maxima would be NaN."""

DeviceTensor = Any


def padded(size: int, unit: int = TILE) -> int:
    """The least multiple of ``unit`` that is ``size`` or more."""
    return -(-size // unit) * unit


def padded_head(head_dim: int) -> int:
    """E: a head's dimensions with each half filled up to whole tiles."""
    return 2 * padded(head_dim // 2)


@dataclass(frozen=True)
class AttentionPart:
    """One request's part of a pass: its rows lie in the row tiles ``first`` … ``end - 1`` of the pass.

    ``mask_QS``: a device tensor that is added to the scores, 0 or :data:`HIDDEN`, a row for each of its rows, a column
    for each key in whole chunks of ``KEY_TILES``: any row may see any keys.
    """

    first: int
    end: int
    mask_QS: DeviceTensor


class Operations(ABC):
    """What computes a pass. Device tensors are of ``dtype``; nothing raises but for sizes that do not fit together."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    @abstractmethod
    def describe(self) -> str:
        """Device or simulator, and its version."""

    @abstractmethod
    def to_device(self, x: torch.Tensor) -> DeviceTensor:
        """A matrix from the host as ``dtype``, padded with zeros to whole tiles."""

    @abstractmethod
    def to_host(self, x: DeviceTensor, rows: slice, columns: int) -> torch.Tensor:
        """Rows of a device tensor and its first columns, on the host, as ``dtype``. Waits for the device."""

    @abstractmethod
    def columns(self, x: DeviceTensor, first: int, end: int) -> DeviceTensor:
        """Columns ``first`` … ``end - 1`` of all rows, both whole tiles."""

    @abstractmethod
    def rms_norm(
        self, x_RM: DeviceTensor, gain_1M: DeviceTensor, eps: float, size: int, groups: int = 1
    ) -> DeviceTensor:
        """x / sqrt(mean(x²) + eps) · gain, over each of ``groups`` equal parts of a row [R, M].

        ``size``: how many of a part's columns are no padding, over which the mean is. The gain is one part long, and 0
        for padding.
        """

    @abstractmethod
    def linear(self, x_RI: DeviceTensor, weight_IO: DeviceTensor, bias_1O: DeviceTensor | None = None) -> DeviceTensor:
        """x @ weight + bias [R, O]; the output head too."""

    @abstractmethod
    def gated(self, x_RM: DeviceTensor, gate_MF: DeviceTensor, up_MF: DeviceTensor) -> DeviceTensor:
        """silu(x @ gate) · (x @ up) [R, F]."""

    @abstractmethod
    def rotary(self, x_RHE: DeviceTensor, cos_RE: DeviceTensor, sin_RE: DeviceTensor) -> DeviceTensor:
        """Every head [R, E] of [R, H·E] rotated: x · cos + (-second half, first half) · sin."""

    @abstractmethod
    def add(self, a_RM: DeviceTensor, b_RM: DeviceTensor) -> DeviceTensor:
        """a + b: the residual."""

    @abstractmethod
    def new_cache(self, capacity: int, kv_heads: int, head_dim: int) -> DeviceTensor:
        """Zeros for the keys or the values of one layer of one request, as the operations below take them.

        ``capacity``: in whole chunks of ``KEY_TILES``; ``head_dim``: E.
        """

    @abstractmethod
    def update_cache(self, cache: DeviceTensor, x_RGE: DeviceTensor, first: int, columns: Sequence[int]) -> None:
        """Row i of those from row tile ``first`` on becomes what the cache has in column ``columns[i]``."""

    @abstractmethod
    def move_in_cache(self, cache: DeviceTensor, sources: Sequence[int], column: int) -> None:
        """What is in columns ``sources`` (increasing, none before ``column``) goes to ``column`` and those after."""

    @abstractmethod
    def read_cache(self, cache: DeviceTensor) -> torch.Tensor:
        """A whole cache on the host [C, G·E], which :meth:`write_cache` takes."""

    @abstractmethod
    def write_cache(self, cache: DeviceTensor, content: torch.Tensor) -> None:
        """Put what a smaller cache had into the first columns of this one."""

    @abstractmethod
    def attention(
        self,
        q_RHE: DeviceTensor,
        caches: Sequence[tuple[DeviceTensor, DeviceTensor]],
        parts: Sequence[AttentionPart],
        heads: int,
        kv_heads: int,
        scale: float,
    ) -> DeviceTensor:
        """softmax(q · kᵀ · scale + mask) · v [R, H·E] of all heads and requests: flash decode over tiles of keys.

        ``caches``: each request's keys and values, of which its mask says how many are looked at. H/G query heads share
        a KV head.
        """
