"""MXFP4: 32 numbers of 4 bits share a power of two (OCP Microscaling Formats, version 1.0, §5.3 and §6.2).

Legend: X anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers, of one bit of sign, two of exponent and one of mantissa."""


def half_of_powers(exponent_X: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Half of what these bytes (E8M0) mean: of 255 that is not a number."""
    power_X: npt.NDArray[np.float32] = np.ldexp(np.float32(1), exponent_X.astype(np.int32) - 128)
    return np.where(exponent_X == 255, np.float32(np.nan), power_X)
