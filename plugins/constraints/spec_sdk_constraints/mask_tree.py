"""The masks that an answer has come to, kept behind the tokens that led to them.

Legend: B bytes of a mask, a bit per token, the lowest bit first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint8]
"""[B]"""


class Where(Enum):
    """What the tokens up to a place are: ``inside`` the grammar, at its ``end``, or ``outside`` of it."""

    inside = 0
    end = 1
    outside = 2


@dataclass
class Place:
    """What may follow some tokens of an answer. ``mask`` and ``forced`` are None until they were asked for; ``limit``:
    why there is no mask.
    """

    where: Where
    mask: Mask | None = None
    forced: list[int] | None = None
    limit: str = ""
    after: dict[int, Place] = field(default_factory=dict)


def allowed_in(mask: Mask, token: int) -> bool:
    """Whether a mask has a token; one beyond its end it has not."""
    byte = token >> 3
    return byte < len(mask) and bool(mask[byte] >> (token & 7) & 1)


def only_token(mask: Mask) -> int | None:
    """The token of a mask that has one alone; None if it has more or none."""
    (bytes_with_any,) = np.nonzero(mask)
    if len(bytes_with_any) != 1:
        return None
    byte = int(bytes_with_any[0])
    bits = int(mask[byte])
    return None if bits & (bits - 1) else byte * 8 + bits.bit_length() - 1
