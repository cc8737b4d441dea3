"""Whether a decoder's wide passes run natively, part by part, though nobody asked for the same bits in every pass.

Each part reads all weights once more; but attention and what else lies between the products is faster natively, and no
row's bits hang on those beside it. Which counts for more hangs on the model, its dtype, the processor and its caches.
"""

from __future__ import annotations

import time

import torch

from spec_sdk.model.decoder import BlockWeights, Decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk_backends.native.crossover import MARGIN
from spec_sdk_backends.native.decoder import NativeDecoder
from spec_sdk_backends.native.library import library, uses_amx
from spec_sdk_backends.native.measured_once import measured_once, place_of

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
    *of_blocks, _ = decoder.projections
    rounds = any(isinstance(part, QuantizedProjection) and part.rounds for part in of_blocks)
    return rounds or parts_are_as_fast(decoder, ops)


def parts_are_as_fast(decoder: Decoder, ops: Ops) -> bool:
    """Whether a prompt is no more than :data:`MARGIN` times as dear in parts: measured once for a shape of blocks."""
    of_block = [(part.outputs, part.inputs, part.nbytes) for part in _linear(decoder.blocks[0])]
    nbytes = sum(part[-1] for part in of_block)
    blocks = min(decoder.layers, max(1, -(-LEAST_BYTES // nbytes)))
    c, kernels = decoder.config, f"{library()._name} {uses_amx()} {torch.__version__}"
    heads = f"{c.num_heads} {c.num_kv_heads} {c.head_dim}"
    facts = f"{kernels} {decoder.dtype} {torch.get_num_threads()} {ROWS} {blocks} of {of_block} {heads}"
    if facts not in _found:
        telling = "" if blocks * nbytes < QUICK_BYTES else f"timing prompts in {str(decoder.dtype)[6:]}"
        some = NativeDecoder(decoder.subset(range(blocks)))
        _found[facts] = bool(measured_once(place_of("parts", facts), (0, 1), lambda: measure(some, ops), telling))
    return _found[facts]


_found: dict[str, bool] = {}
"""A process never changes its mind."""


def measure(decoder: NativeDecoder, ops: Ops) -> bool:
    """The same, measured now. The first of both ways is not counted."""
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


def _linear(block: BlockWeights) -> list[Projection]:
    return [block.qkv, block.output, *block.mlp.projections]
