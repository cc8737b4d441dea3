"""A draft head's one block in one native call, in narrow passes.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.head import DraftHead, HeadPass, has_plain_block
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk_backends.native.attention import MOST_ROWS, reads_in_place
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.decoder import PassRotations, block_of, run_blocks, shape_of, unknown_stages
from spec_sdk_backends.native.structures import Cache, Pass


def native_head_block(head: DraftHead) -> NativeHeadBlock | None:
    """None for a head with parts or stages that the kernels lack."""
    known = type(head).attention_input in (Decoder.attention_input, Eagle3Head.attention_input)
    if not (known and has_plain_block(head, LatentDecoder if isinstance(head, LatentDecoder) else Decoder)):
        return None
    return NativeHeadBlock(head) if unknown_stages(head) is None else None


class NativeHeadBlock:
    """Runs the block of ``head``, whose attention may read an embedding before each hidden state."""

    def __init__(self, head: DraftHead) -> None:
        self._most_rows = min(MOST_ROWS, most_rows(head.dtype))
        self._shape, self._block = shape_of(head), block_of(head, 0, head.attention_norm_M)

    def __call__(self, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor | None:
        """What leaves the block [B, N, M]; None, and nothing done, for a pass that is not narrow."""
        rows = h_BNM.shape[0] * h_BNM.shape[1]
        if rows > self._most_rows or torch.is_grad_enabled() or not reads_in_place(work.cache):
            return None
        beside_BNM = work.embedded_BNM.contiguous() if isinstance(work, HeadPass) else None
        h_BNM = h_BNM.clone(memory_format=torch.contiguous_format)
        of_pass, cache, rotations = Pass.of(work.inputs), Cache.of_pass(work.cache, 1), PassRotations(work)
        run_blocks(h_BNM.dtype, self._shape, self._block, 0, 1, of_pass, cache, h_BNM, rotations, beside_BNM)
        work.record(1, h_BNM)
        return h_BNM
