"""Whether a decoder's wide passes run natively, part by part, though nobody asked for the same bits in every pass.

Each part reads all weights once more; but attention and what else lies between the products is faster natively, and no
row's bits hang on those beside it. Which counts for more hangs on the model, its dtype, the processor and its caches.
"""

from __future__ import annotations

import time
from pathlib import Path

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.quantized_linear import rounds_rows
from spec_sdk_backends.measured_once import measured_once
from spec_sdk_backends.native.crossover import MARGIN
from spec_sdk_backends.native.kept_figures import place_of
from spec_sdk_backends.native.latent_decoder import native_decoder

ROWS = 512
"""Of the prompt that is timed."""
LEAST_BYTES = 256 << 20
"""Of weights that it passes through in whole blocks, if there are so many: those of a large model lie in no cache."""
QUICK_BYTES = 32 << 20
"""Of weights whose timing nobody has to be told of."""
TIMES = 3


def runs_in_parts(decoder: Decoder, ops: Ops) -> bool:
    """Whether wide passes of a decoder, one that the kernels run, do so in parts.

    Where prompts are no dearer so; and always beside rows that are rounded, as torch's other last bits would tip codes,
    and a prompt's would hang on what it is fed with.
    """
    return blocks_round_rows(decoder) or parts_are_as_fast(decoder, ops)


def blocks_round_rows(decoder: Decoder) -> bool:
    """Whether rows are rounded to 8 bits before some of a decoder's blocks' products."""
    *of_blocks, _ = decoder.projections
    return rounds_rows(of_blocks)


def parts_are_as_fast(decoder: Decoder, ops: Ops) -> bool:
    """Whether a prompt is no more than :data:`MARGIN` times as dear in parts: measured once for a shape of blocks."""
    *linear, _ = decoder.subset([0]).projections
    of_block = [(part.outputs, part.inputs, part.nbytes) for part in linear]
    nbytes = sum(part.nbytes for part in linear)
    blocks = min(decoder.layers, -(-LEAST_BYTES // nbytes))
    c = decoder.config
    place = place_of(
        "parts", f"{decoder.dtype} {ROWS} {blocks} of {of_block} {c.num_heads} {c.num_kv_heads} {c.head_dim}"
    )
    if place not in _found:
        telling = "" if blocks * nbytes < QUICK_BYTES else f"timing prompts in {str(decoder.dtype)[6:]}"
        some = decoder.subset(range(blocks))
        _found[place] = bool(measured_once(place, (0, 1), lambda: measure(some, ops), telling))
    return _found[place]


_found: dict[Path, bool] = {}
"""A process never changes its mind."""


def measure(blocks: Decoder, ops: Ops) -> bool:
    """The same for all blocks of this decoder, measured now. The first of both ways is not counted."""
    decoder = native_decoder(blocks)
    session = Session(TorchExecutor(decoder, ops))
    tokens, taken = [0] * min(ROWS, session.context), dict[bool, list[float]]({False: [], True: []})
    for _ in range(1 + TIMES):
        for in_parts, seconds in taken.items():
            decoder.in_parts = in_parts
            session.truncate(0, 0)
            start = time.perf_counter()
            session.prefill(0, tokens)
            seconds.append(time.perf_counter() - start)
    return min(taken[True][1:]) <= MARGIN * min(taken[False][1:])
