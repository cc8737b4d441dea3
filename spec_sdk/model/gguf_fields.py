"""Small numbers that GGUF's blocks have several of in a byte.

Legend: R rows, B blocks of a row, J bytes of a part of a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Small = npt.NDArray[np.int8]

NOT_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the codes of IQ4_NL and IQ4_XS stand for (ggml's kvalues_iq4nl)."""


def fields(part_RBJ: Bytes, bits: int, width: int) -> Small:
    """The numbers of so many bits: of each ``width`` neighbouring bytes first those in the lowest bits of all, then the
    next ones.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    apart = part_RBJ.reshape(*part_RBJ.shape[:2], -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return apart.reshape(*part_RBJ.shape[:2], -1).view(np.int8)


def halves(part_RBJ: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The float16 at byte ``at`` [R, B, 1]."""
    return np.ascontiguousarray(part_RBJ[..., at : at + 2]).view("<f2")


def scales_and_mins(part_RBJ: Bytes) -> tuple[Small, Small]:
    """The eight scales and eight mins of 6 bits of Q4_K and Q5_K, in 12 bytes: of the first four of each the bytes'
    lower 6 bits; of the others the upper 2 bits are above those, and the lower 4 in the halves of the last bytes.
    """
    scale, low, rest = part_RBJ[..., :4], part_RBJ[..., 4:8], part_RBJ[..., 8:]
    scales = np.concatenate([scale & 63, rest & 15 | scale >> 6 << 4], -1)
    mins = np.concatenate([low & 63, rest >> 4 | low >> 6 << 4], -1)
    return scales.view(np.int8), mins.view(np.int8)


def sixteen_scales(part_RBJ: Bytes) -> Small:
    """The scales of 6 bits of Q3_K, -32 … 31, in 12 bytes: the lower 4 bits in the first eight, the upper 2 in the
    others.
    """
    return fields(part_RBJ[..., :8], 4, 8) + 16 * fields(part_RBJ[..., 8:], 2, 4) - 32
