"""Tokens drawn from one row of logits by the kernels of :mod:`spec_sdk_backends.drawing_kernels`.

Legend: V vocabulary, T tiles of it.
"""

from __future__ import annotations

import functools
import struct

import torch
import triton  # type: ignore[import-untyped]

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.kept_tokens import kept, numbers_of
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.uploads import to_device
from spec_sdk_backends.drawing_kernels import draw_kernel, tile_masses_kernel
from spec_sdk_backends.kept_tokens import least_kept

TILE = 4096
WARPS = 8
NOTHING = (-1, False)
"""Drawn yet."""


class RowDrawing:
    """A :class:`~spec_sdk.ops.draws.Drawing` from logits [V] on a GPU: each draw is two launches and one read.

    Borders of filters are those that verdicts find, by the same kernel.
    """

    def __init__(self, logits_V: torch.Tensor, shaping: Shaping) -> None:
        self._logits_V, device = logits_V.contiguous(), logits_V.device
        self._filtered = shaping.filtered
        self._temperature = max(shaping.temperature, torch.finfo(torch.float32).tiny)
        # tensors that are never read stand for those that there are none of
        self._least_1 = self._last_1 = self._logits_V
        if self._filtered:
            numbers = tuple(numbers_of(shaping))
            self._least_1, self._last_1 = least_kept(self._logits_V[None], _on_device(numbers, device))
        self._tiles = triton.cdiv(len(logits_V), TILE)
        self._largest_T, self._mass_T = torch.empty((2, self._tiles), dtype=torch.float32, device=device)
        self._drawn_3 = torch.empty(3, dtype=torch.float64, device=device)
        self._known: dict[int, float] = {}
        self._last = NOTHING
        self._weigh()

    def draw(self, uniform: float) -> int:
        """Raises UnusableLogits, row 0."""
        draw_kernel[(1,)](
            self._logits_V,
            self._least_1,
            self._last_1,
            self._largest_T,
            self._mass_T,
            self._drawn_3,
            _bits(1.0 + uniform),
            len(self._logits_V),
            self._tiles,
            self._temperature,
            FILTERED=self._filtered,
            TILE=TILE,
            TILES=triton.next_power_of_2(self._tiles),
            num_warps=WARPS,
        )
        token, probability, others = self._drawn_3.tolist()
        if token < 0:
            raise UnusableLogits(0)
        self._known, self._last = {int(token): probability}, (int(token), others > 0)
        return int(token)

    def probability(self, token: int) -> float:
        """Of the token that was drawn last it is known; of others it is worked out."""
        if token not in self._known:
            self._known[token] = float(self._distribution()[token])
        return self._known[token]

    def remove(self, token: int) -> None:
        last, others = self._last
        if token != last:
            p_V = self._distribution()
            others = bool((p_V > 0).sum() > (p_V[token] > 0))
        if not others:
            return
        left_V = self._logits_V.clone()
        left_V[token] = float("-inf")
        self._logits_V, self._known, self._last = left_V, {token: 0.0}, NOTHING
        self._weigh()

    def _distribution(self) -> torch.Tensor:
        score_V = self._logits_V.float()
        if self._filtered:
            score_V = score_V.masked_fill(~kept(score_V[None], self._least_1, self._last_1)[0], float("-inf"))
        return ((score_V - score_V.amax()) / self._temperature).softmax(-1)

    def _weigh(self) -> None:
        tile_masses_kernel[(self._tiles,)](
            self._logits_V,
            self._least_1,
            self._last_1,
            self._largest_T,
            self._mass_T,
            len(self._logits_V),
            self._temperature,
            FILTERED=self._filtered,
            TILE=TILE,
            num_warps=WARPS,
        )


@functools.lru_cache(maxsize=64)
def _on_device(numbers: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """A sampling's numbers [1, 4]: uploaded once."""
    return to_device(torch.tensor([numbers], dtype=torch.float64), device)


def _bits(value: float) -> int:
    """Of a float64, as an integer; from 1 on always one of 64 bits, for which no other kernel is compiled."""
    bits: int = struct.unpack("q", struct.pack("d", value))[0]
    return bits
