"""Speculative flash decode on TT-NN: the prediction from both ends of the keys, the exact attention, the verdict.

ALSpec (Cai et al. 2025), §4.1 and Alg. 3, in operations of TT-Lang. The prediction, :meth:`SpeculativeDecode.partial`,
is an operation of its own: a call is done when it returns, so that what it makes can only be sent on before the other
keys are read if reading them is another call.

Legend: n live rows of a request, R its rows in whole tiles, H query heads, G KV heads, E padded head dim, C keys that a
cache has room for, T tree slots, W keys of the window's tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.ops import Ends
from spec_sdk_backends.ttnn.operations import HIDDEN, TILE, DeviceTensor, padded
from spec_sdk_backends.ttnn.simulated import load_simulator

WORKERS = 4
"""Nodes that share the keys of a head, at most."""


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads, and what scores are multiplied by."""

    query: int
    kv: int
    scale: DeviceTensor


@dataclass(frozen=True)
class GuessingPart:
    """What the operations know of one request's part of a pass; the same for all layers.

    ``window_tiles``: tiles of keys of which the window has some, ``window_mask`` [R, W] which of their keys a row sees.
    ``shares``: the tiles of the keys between, per worker; ``edges`` [32, 64] hides the window's keys in the first and
    in the last of them. ``live`` [R, 32]: 1 in the first column of live rows.
    """

    window_tiles: Sequence[int]
    window_mask: DeviceTensor
    shares: Sequence[Sequence[int]]
    edges: DeviceTensor
    live: DeviceTensor


@dataclass(frozen=True)
class Window:
    """The prediction: ``predicted`` [R, H·E]. In float32 the same as ``o``, with the softmax statistics ``largest`` and
    ``total`` [R, H·32].
    """

    predicted: DeviceTensor
    o: DeviceTensor
    largest: DeviceTensor
    total: DeviceTensor


@dataclass(frozen=True)
class Exact:
    """``o`` [R, H·E]; float32 [R, H·32], in the first column of each head's tile: ‖Â - A‖² and ‖A‖²."""

    o: DeviceTensor
    difference_sq: DeviceTensor
    norm_sq: DeviceTensor


@dataclass(frozen=True)
class Verdict:
    """``misses``: a float32 tile whose first value is the number of live rows that miss, 0 being a hit. In the first
    column of ``difference_sq`` and ``norm_sq`` [R, 32]: ‖Â - A‖² and ‖A‖² of each row.
    """

    misses: DeviceTensor
    difference_sq: DeviceTensor
    norm_sq: DeviceTensor


class SpeculativeDecode:
    """The operations, for device tensors of ``dtype``. ``workers``: nodes that share the keys of a head, at most."""

    def __init__(self, dtype: torch.dtype, workers: int = WORKERS) -> None:
        self._ttnn: Any = load_simulator()
        # they import the simulator's ttl, which may only be after it was loaded as above
        from spec_sdk_backends.ttnn.kernels import rest_attention, verification, window_attention

        self.dtype = dtype
        self._workers = workers
        self._partial = window_attention.window_attention
        self._combine = rest_attention.rest_attention
        self._verification: Any = verification
        self._none = self._device(torch.zeros(TILE, TILE), torch.float32)

    def heads(self, query: int, kv: int, scale: float) -> Heads:
        """So many query heads and KV heads."""
        return Heads(query, kv, self._device(torch.full((TILE, TILE), scale), torch.float32))

    def part(self, prefix: int, seen_nT: torch.Tensor, ends: Ends) -> GuessingPart:
        """Of a request with ``prefix`` committed keys, whose rows see those of the tree slots behind them that
        ``seen_nT``, bool, says. Both ends leave keys between them: ``prefix > ends.keys``.
        """
        n, T = seen_nT.shape
        last, R, S = prefix - ends.last, padded(n), padded(prefix + T)
        begins = range(-(-ends.first // TILE))
        window_tiles = sorted({*begins, *range(last // TILE, S // TILE)})
        mask_RS = torch.full((R, S), HIDDEN)
        mask_RS[:, : ends.first] = 0
        mask_RS[:, last:prefix] = 0
        mask_RS[:n, prefix : prefix + T].masked_fill_(seen_nT, 0)
        window_mask_RW = mask_RS.view(R, -1, TILE)[:, window_tiles].flatten(1)
        between = range(ends.first // TILE, -(-last // TILE))
        edges = torch.zeros(TILE, 2 * TILE)
        edges[:, : ends.first - between[0] * TILE] = HIDDEN
        edges[:, TILE + last - between[-1] * TILE :] = HIDDEN
        live_R1 = (torch.arange(R) < n).float()[:, None]
        return GuessingPart(
            window_tiles=window_tiles,
            window_mask=self._device(window_mask_RW),
            shares=shares_of(between, self._workers),
            edges=self._device(edges),
            live=self._device(live_R1, torch.float32),
        )

    def partial(
        self, q_RHE: DeviceTensor, k: DeviceTensor, v: DeviceTensor, part: GuessingPart, heads: Heads
    ) -> Window:
        """Attention over both ends of the committed keys and a row's own tree ancestors; ``k``, ``v`` [C, G·E]."""
        R, H = q_RHE.shape[0], heads.query
        o, predicted = self._empty(R, q_RHE.shape[1], torch.float32), self._empty(R, q_RHE.shape[1], self.dtype)
        largest, total = (self._empty(R, H * TILE, torch.float32) for _ in range(2))
        self._partial(
            q_RHE,
            k,
            v,
            part.window_mask,
            heads.scale,
            o,
            largest,
            total,
            predicted,
            part.window_tiles,
            heads.query,
            heads.kv,
        )
        return Window(predicted, o, largest, total)

    def combine(
        self, q_RHE: DeviceTensor, k: DeviceTensor, v: DeviceTensor, part: GuessingPart, window: Window, heads: Heads
    ) -> Exact:
        """The keys between are read, and merged with the window's attention by their log-sum-exp."""
        R, H = q_RHE.shape[0], heads.query
        exact = self._empty(R, q_RHE.shape[1], self.dtype)
        difference_sq, norm_sq = self._empty(R, H * TILE, torch.float32), self._empty(R, H * TILE, torch.float32)
        seen = (window.o, window.largest, window.total)
        out = (exact, difference_sq, norm_sq)
        self._combine(q_RHE, k, v, part.edges, heads.scale, *seen, *out, part.shares, heads.query, heads.kv)
        return Exact(exact, difference_sq, norm_sq)

    def compare(self, predicted_RX: DeviceTensor, exact_RX: DeviceTensor) -> Exact:
        """Both projected attentions: the squares of their rows, by tiles of columns in the place of heads."""
        R, X = exact_RX.shape
        difference_sq, norm_sq = (self._empty(R, X, torch.float32) for _ in range(2))
        self._verification.squares(predicted_RX, exact_RX, difference_sq, norm_sq)
        return Exact(exact_RX, difference_sq, norm_sq)

    def verify(self, exact: Exact, part: GuessingPart, threshold: float) -> Verdict:
        """A hit if every live row has ‖Â - A‖ < ``threshold`` ‖A‖."""
        # an infinite threshold takes every prediction, and times a norm of zero it would be NaN
        threshold_sq = min(threshold * threshold, -HIDDEN)
        R = exact.norm_sq.shape[0]
        difference, norm = self._empty(R, TILE, torch.float32), self._empty(R, TILE, torch.float32)
        misses = self._empty(TILE, TILE, torch.float32)
        threshold_tile = self._device(torch.full((TILE, TILE), threshold_sq), torch.float32)
        squares = (exact.difference_sq, exact.norm_sq)
        self._verification.verify(*squares, threshold_tile, part.live, difference, norm, misses)
        return Verdict(misses, difference, norm)

    def choose(
        self, predicted_RX: DeviceTensor, exact_RX: DeviceTensor, verdict: Verdict, out_RX: DeviceTensor
    ) -> None:
        """The prediction on a hit, the exact attention on a miss, to ``out_RX``; the host does not see the verdict."""
        self._verification.choose(predicted_RX, exact_RX, verdict.misses, self._none, out_RX)

    def empty(self, rows: int, columns: int) -> DeviceTensor:
        """A device tensor that is yet to be written."""
        return self._empty(rows, columns, self.dtype)

    def rows(self, x: DeviceTensor, first: int, end: int) -> DeviceTensor:
        """Row tiles ``first`` … ``end - 1``: a view."""
        return x[first:end, 0 : x.shape[1] // TILE]

    def _device(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> DeviceTensor:
        return self._ttnn.from_torch(x, dtype=dtype or self.dtype, layout=self._ttnn.TILE_LAYOUT)

    def _empty(self, rows: int, columns: int, dtype: torch.dtype) -> DeviceTensor:
        return self._ttnn.empty((rows, columns), dtype=dtype, layout=self._ttnn.TILE_LAYOUT)


def shares_of(tiles: range, workers: int) -> list[list[int]]:
    """The tiles in order, spread over at most so many workers as evenly as can be, none of them idle."""
    count = min(workers, len(tiles))
    ends = [len(tiles) * worker // count for worker in range(count + 1)]
    return [list(tiles[ends[w] : ends[w + 1]]) for w in range(count)]
