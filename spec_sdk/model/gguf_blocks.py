"""The blocks of GGUF's plain quantisations, taken apart into codes, scales and offsets (ggml's block_q4_0 and so on).

A block is 32 weights of a row: a float16 scale, with Q4_1 a float16 minimum, and the codes. Nothing is rounded here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class BlockLayout:
    """``codes``: their safetensors dtype, and ``size`` their bytes. Their first stands at byte ``first``.

    ``offset``: whether there is one; ``zero``: the code that means 0 where the block has none stored.
    """

    codes: str
    size: int
    first: int
    offset: bool
    zero: int | None = None

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self.codes == "U8" else 8


LAYOUTS = {
    "Q4_0": BlockLayout("U8", 16, first=2, offset=True, zero=8),
    "Q4_1": BlockLayout("U8", 16, first=4, offset=True),
    "Q8_0": BlockLayout("I8", 32, first=2, offset=False),
}
"""By ggml's name of the quantisation."""


def codes_of(stored: Bytes, kind: str) -> Bytes:
    """The codes [rows, bytes] of stored rows [rows, bytes]."""
    layout = LAYOUTS[kind]
    return _blocks(stored, layout)[..., layout.first :].reshape(len(stored), -1)


def scales_of(stored: Bytes, kind: str) -> npt.NDArray[np.float16]:
    """The scales [rows, blocks]."""
    return _halves(_blocks(stored, LAYOUTS[kind]), 0)


def offsets_of(stored: Bytes, kind: str) -> npt.NDArray[np.float16]:
    """What is added to scale · code [rows, blocks]; infinite where float16 cannot hold it."""
    layout = LAYOUTS[kind]
    if layout.zero is None:
        return _halves(_blocks(stored, layout), 2)
    with np.errstate(over="ignore"):
        return (scales_of(stored, kind) * np.float16(-layout.zero)).astype(np.float16)


def _blocks(stored: Bytes, layout: BlockLayout) -> Bytes:
    return stored.reshape(len(stored), -1, layout.first + layout.size)


def _halves(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]
