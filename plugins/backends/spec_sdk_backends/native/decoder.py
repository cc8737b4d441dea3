"""A decoder whose blocks run natively in narrow passes: consecutive blocks in one call, one stage at a time for runners
that need the stages.

Both compute the same to the bit. Wide passes run natively in parts, or in torch, as does what takes derivatives.

Legend: B requests, N rows of a request, M model dim, H query heads, G KV heads, D head dim, X heads of Q, K and V.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spec_sdk.model.decoder import BlockWeights, Decoder, ForwardPass, Rotations
from spec_sdk.model.latent_attention import LatentDecoder
from spec_sdk.model.restaged_decoder import RestagedDecoder
from spec_sdk.model.rope import Rotation, RotationsAt
from spec_sdk.ops.quantized_linear import QuantizedProjection
from spec_sdk_backends.native.attention import MOST_ROWS, knows_heads, reads_in_place
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.feed_forward import (
    activation_of,
    feed_forward_of,
    feed_forward_sizes,
    is_native,
    matrix_of,
    unknown_feed_forward,
)
from spec_sdk_backends.native.in_parts import InParts
from spec_sdk_backends.native.latent_structures import latents_of, numbers_beside_queries, unknown_latents
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_backends.native.structures import ACTIVATIONS, DTYPES, Block, Cache, Gain, Matrix, Pass, Shape, address


def unknown_block(decoder: Decoder) -> str | None:
    """Why the native kernels do not run a decoder's blocks; None if they do."""
    if type(decoder) not in (Decoder, LatentDecoder):
        return f"a {type(decoder).__name__} is not run natively"
    return unknown_stages(decoder)


def unknown_stages(decoder: Decoder) -> str | None:
    """Why they do not run what a block does once it has read its input; None if they do."""
    config = decoder.config
    # heads that share latents are taken some at a time
    queries = config.num_heads if config.latent is None else 1
    if decoder.dtype not in DTYPES or not knows_heads(queries, config.num_kv_heads, config.head_dim):
        return f"heads of {config.head_dim} in {decoder.dtype} are not"
    if not decoder.blocks:
        return "there are no blocks"
    for layer, block in enumerate(decoder.blocks):
        if not all(Gain.suits(gain, decoder.dtype) for gain in _gains_of(block, block.input_norm_M)):
            return f"layer {layer} has gains in another dtype than its weights"
        if not all(map(is_native, (*block.qkv.parts, *block.output.parts))):
            return f"layer {layer} has linear layers of another kind"
        unknown = block.mlp and unknown_feed_forward(block.mlp, decoder.dtype)
        if block.latents is not None:
            unknown = unknown or unknown_latents(config, block.latents, decoder.dtype)
        if unknown is not None:
            return f"layer {layer} has {unknown}"
    activations = {activation_of(block.mlp) for block in decoder.blocks if block.mlp is not None}
    return None if len(activations) < 2 else "layers have different activations"


def leave_rows_exact(decoder: Decoder) -> None:
    """Multiply rows as they are from now on, everywhere in ``decoder``."""
    if isinstance(decoder.output_head, QuantizedProjection):
        # a draft model's may be its target's very own
        decoder.output_head = copy.copy(decoder.output_head)
    for part in decoder.projections:
        if isinstance(part, QuantizedProjection):
            part.rounds = False
            # what a kernel was told of it
            vars(part).pop("matrix", None)
        if isinstance(part, NativeQuantizedProjection) and decoder.dtype in DTYPES:
            # now, so that no run waits for it
            most_rows(decoder.dtype, part.quantized.bits)


class NativeDecoder(InParts, RestagedDecoder):
    """A decoder of blocks that :func:`unknown_block` has nothing against.

    ``in_parts``: wide passes run natively too, part by part, so that a row gets the same bits in every pass.
    ``native_shape``, ``native_blocks``: what the kernels are given of it.
    """

    # a row's bits are those of its own stages then, however many rows and layers there are
    fuses_groups = False

    def __init__(self, decoder: Decoder, in_parts: bool = False) -> None:
        super().__init__(decoder)
        self.in_parts = in_parts
        self._dtype_number = DTYPES[self.dtype]
        self.most_rows = min(MOST_ROWS, most_rows(self.dtype))
        self.native_shape = shape_of(self)
        gains = [block.input_norm_M for block in self.blocks]
        self.native_blocks = (Block * self.layers)(*(block_of(self, layer, gain) for layer, gain in enumerate(gains)))

    def subset(self, layers: Sequence[int]) -> Decoder:
        return NativeDecoder(super().subset(layers), self.in_parts)

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        if torch.is_grad_enabled() or not reads_in_place(work.cache):
            return None
        if not self.narrow(h_BNM):
            return self.blocks_in_parts(h_BNM, work, first, end) if self.in_parts else None
        of_pass, cache = Pass.of(work.inputs), Cache.of_pass(work.cache, self.layers)
        h_BNM, rotations = h_BNM.clone(memory_format=torch.contiguous_format), PassRotations(work)
        left = {layer: torch.empty_like(h_BNM) for layer in work.taps if first < layer < end}
        block, count = self.native_blocks[first], end - first
        run_blocks(self.dtype, self.native_shape, block, first, count, of_pass, cache, h_BNM, rotations, left=left)
        for layer, state_BNM in left.items():
            work.record(layer, state_BNM)
        work.record(end, h_BNM)
        return h_BNM

    def pre_attention(
        self, layer: int, h_BNM: torch.Tensor, work: Rotations
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if not self.narrow(h_BNM):
            return super().pre_attention(layer, h_BNM, work)
        (B, N, _), c = h_BNM.shape, self.config
        H, G = c.num_heads, c.num_kv_heads
        h_BNM, rotations = h_BNM.contiguous(), PassRotations(work)
        qkv_BNXD = h_BNM.new_empty((B, N, H + 2 * G, c.head_dim))
        library().spec_before(
            self._dtype_number,
            address(self.native_shape),
            ctypes.addressof(self.native_blocks[layer]),
            B * N,
            h_BNM.data_ptr(),
            rotations.cosines,
            rotations.sines,
            rotations.position,
            qkv_BNXD.data_ptr(),
            torch.get_num_threads(),
        )
        return qkv_BNXD[:, :, :H], qkv_BNXD[:, :, H : H + G], qkv_BNXD[:, :, H + G :]

    def post_attention(self, layer: int, h_BNM: torch.Tensor, a_BNM: torch.Tensor) -> torch.Tensor:
        if not self.narrow(h_BNM):
            return super().post_attention(layer, h_BNM, a_BNM)
        h_BNM, a_BNM = h_BNM.clone(memory_format=torch.contiguous_format), a_BNM.contiguous()
        library().spec_after(
            self._dtype_number,
            address(self.native_shape),
            ctypes.addressof(self.native_blocks[layer]),
            h_BNM.shape[0] * h_BNM.shape[1],
            h_BNM.data_ptr(),
            a_BNM.data_ptr(),
            torch.get_num_threads(),
        )
        return h_BNM


def run_blocks(
    dtype: torch.dtype,
    shape: Shape,
    block: Block,
    first: int,
    count: int,
    of_pass: Pass,
    cache: Cache,
    h_BNM: torch.Tensor,
    rotations: PassRotations,
    beside_BNM: torch.Tensor | None = None,
    left: Mapping[int, torch.Tensor] | None = None,
) -> None:
    """Run ``count`` blocks, ``block`` and those behind it in memory, from cache layer ``first`` on; writes ``h_BNM``.

    ``beside_BNM``: what their attention reads before each hidden state. ``left``: tensors like ``h_BNM`` to write to,
    layer → what leaves the block before it.
    """
    places = None
    if left:
        places = (ctypes.c_void_p * count)()
        for layer, state_BNM in left.items():
            places[layer - first - 1] = state_BNM.data_ptr()
    library().spec_blocks(
        DTYPES[dtype],
        address(shape),
        address(block),
        first,
        count,
        address(of_pass),
        address(cache),
        h_BNM.data_ptr(),
        None if beside_BNM is None else beside_BNM.data_ptr(),
        rotations.cosines,
        rotations.sines,
        rotations.position,
        None if places is None else ctypes.addressof(places),
        torch.get_num_threads(),
    )


def shape_of(decoder: Decoder) -> Shape:
    """The sizes that all its blocks have."""
    c, parts = decoder.config, [block.mlp for block in decoder.blocks if block.mlp is not None]
    sizes = map(max, zip((0, 0, 0), *map(feed_forward_sizes, parts), strict=True))
    activation = ACTIVATIONS[next(map(activation_of, parts), c.activation)]
    heads, latent = (c.num_heads, c.num_kv_heads, c.head_dim), 0
    if decoder.blocks:
        latent = max(numbers_beside_queries(c, block) for block in decoder.blocks)
    return Shape(c.hidden_size, *heads, *sizes, c.rms_norm_eps, activation, c.wide_qk_norm, latent)


def block_of(
    decoder: Decoder,
    layer: int,
    input_norm_M: torch.Tensor | None,
    attention: tuple[Matrix, Matrix] | None = None,
) -> Block:
    """One block for the kernels, with this gain on what its attention reads; None for no norm.

    ``attention``: before and behind it, in the place of the block's own matrices.
    """
    block, spec = decoder.blocks[layer], decoder.kinds[layer].attention
    before, behind = attention or (matrix_of(block.qkv), matrix_of(block.output))
    return Block(
        before,
        behind,
        *feed_forward_of(block.mlp),
        *(Gain.of(gain, decoder.dtype) for gain in _gains_of(block, input_norm_M)),
        spec.scale_for(decoder.config.head_dim),
        spec.softcap or 0.0,
        spec.window or 0,
        decoder.rotation_index(layer),
        None if block.sinks_H is None else block.sinks_H.data_ptr(),
        latents_of(decoder.config, block.latents, decoder.dtype),
    )


def _gains_of(block: BlockWeights, input_norm_M: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
    """Of all norms, in the order in which the kernels are given them."""
    before = input_norm_M, block.q_norm_D, block.k_norm_D, block.post_norm_M
    return *before, block.attention_output_norm_M, block.mlp_output_norm_M


class PassRotations:
    """The addresses of a pass's cosines and sines, which it keeps alive: tables [C, D], and where its rows are in them.

    ``position``: of an int32 for every row. Rotations that lie in no table are one by themselves.
    """

    def __init__(self, work: Rotations) -> None:
        rotations = work.rotations
        if isinstance(rotations, RotationsAt):
            self._tensors, self._position = rotations.tables, rotations.position_BN.to(torch.int32).contiguous()
        else:
            self._tensors = [(cos.contiguous(), sin.contiguous()) for cos, sin in rotations]
            self._position = torch.arange(rotations[0][0].shape[:2].numel(), dtype=torch.int32)
        self.cosines, self.sines = addresses_of(self._tensors)
        self.position = self._position.data_ptr()


def addresses_of(rotations: Sequence[Rotation]) -> tuple[Any, Any]:
    """Those of all cosines, and of all sines; whoever asks keeps the tensors alive."""
    places = ctypes.c_void_p * len(rotations)
    return places(*(cos.data_ptr() for cos, _ in rotations)), places(*(sin.data_ptr() for _, sin in rotations))
