"""A row's probabilities up to a factor, in memory of the kernels' own, and what a rule of acceptance does with them.

Legend: V vocabulary, T tiles of it, R tokens that have a logit.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable
from math import isnan

import torch

from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk_backends.native import structures
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.structures import DTYPES, address

TILE = 256
"""``MASS_TILE`` of ``source/mass.h``."""
_thread = threading.local()


def takes(logits: torch.Tensor | SomeLogits) -> bool:
    """Whether :meth:`Mass.of_logits` takes a row, over all tokens or some."""
    row, token_R = (logits.logits_R, logits.token_R) if isinstance(logits, SomeLogits) else (logits, None)
    known = token_R is None or (token_R.device.type == "cpu" and token_R.stride(0) == 1)
    return known and row.dtype in DTYPES and row.device.type == "cpu" and row.stride(0) == 1


def drawing(logits: torch.Tensor | SomeLogits, shaping: Shaping) -> Mass | None:
    """What :meth:`spec_sdk.ops.Ops.drawing` returns; None for logits that the kernel does not take."""
    if not takes(logits):
        return None
    mass = Mass.kept("drawing", logits.shape[0])
    if isnan(mass.of_logits(logits, structures.Shaping.of(shaping, shaping.temperature))):
        raise UnusableLogits(0)
    return mass


class Mass:
    """float32 [V] that need not sum to 1.

    ``whole``: what they are to be divided by, mostly their sum; NaN where they are of logits that are not usable.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._of_V, self._sum_T = (
            torch.empty(size, dtype=torch.float32, device="cpu") for size in (vocabulary, -(-vocabulary // TILE))
        )
        # ctypes reads a single number in a tenth of the time that torch takes
        self._of = (ctypes.c_float * vocabulary).from_address(self._of_V.data_ptr())
        self._fields = structures.Mass(vocabulary, self._of_V.data_ptr(), self._sum_T.data_ptr())
        self._address = address(self._fields)
        self.whole = 0.0

    @staticmethod
    def kept(use: Hashable, vocabulary: int) -> Mass:
        """The one of this ``use`` in this thread, to be written anew: memory that is touched for the first time costs
        more than the arithmetic on it.
        """
        rows: dict[Hashable, Mass] = _thread.__dict__.setdefault("rows", {})
        found = rows.get(use)
        if found is None or found.vocabulary != vocabulary:
            found = rows[use] = Mass(vocabulary)
        return found

    def of_logits(self, logits: torch.Tensor | SomeLogits, shaping: structures.Shaping) -> float:
        """Of a row that :func:`takes` says yes to, 0 of tokens that the filters leave out. Returns ``whole``."""
        row, token_R = (logits.logits_R, logits.token_R) if isinstance(logits, SomeLogits) else (logits, None)
        self.whole = library().spec_mass_of_logits(
            DTYPES[row.dtype],
            self._address,
            row.data_ptr(),
            None if token_R is None else token_R.data_ptr(),
            row.shape[0],
            address(shaping),
            torch.get_num_threads(),
        )
        return self.whole

    def of_probabilities(self, p_V: torch.Tensor) -> None:
        """Of a row that is divided by nothing, whatever its sum. In host memory, float32."""
        p_V = p_V.contiguous()
        library().spec_mass_of_probabilities(self._address, p_V.data_ptr())
        self.whole = 1.0

    def beyond(self, p: Mass, q: Mass) -> float:
        """max(p − q, 0), of other masses than this one. Returns ``whole``."""
        self.whole = library().spec_mass_beyond(
            self._address, p._address, p.whole, q._address, q.whole, torch.get_num_threads()
        )
        return self.whole

    def remove(self, token: int) -> None:
        """Take a token's mass, unless no other token has any."""
        self.whole = library().spec_mass_without(self._address, token)

    def probability(self, token: int) -> float:
        return self._of[token] / self.whole

    def draw(self, uniform: float) -> int:
        """The first token whose cumulated mass exceeds ``uniform`` times the sum; -1 where there is none, or NaN."""
        token: int = library().spec_draw(self._address, uniform)
        return token
