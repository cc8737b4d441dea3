"""A decoder with heads of different shapes whose narrow passes run natively, consecutive blocks in one call.

Wide passes run in parts, or in torch; runners that need the stages of single blocks take those of torch.

Legend: B requests, N rows of a request, M model dim, L layers that are embedded, P numbers of a layer's input.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from spec_sdk.model.decoder import ForwardPass
from spec_sdk.model.shaped_kv_cache import ShapedPassCache
from spec_sdk.model.varied_decoder import InformedPass, VariedDecoder
from spec_sdk.model.varied_parts import ExpertsBesideMLP
from spec_sdk_backends.native.attention import MOST_ROWS, knows_heads, reads_in_place
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.decoder import PassRotations, block_of, shape_of, unknown_stages
from spec_sdk_backends.native.feed_forward import (
    feed_forward_of,
    feed_forward_sizes,
    is_native,
    matrix_of,
    unknown_feed_forward,
)
from spec_sdk_backends.native.in_parts import InParts, parts
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.norm import rms_norm
from spec_sdk_backends.native.structures import DTYPES, Block, Cache, Gain, Matrix, Pass, address

_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p


class VariedBlock(ctypes.Structure):
    _fields_ = [
        ("block", Block),
        *((name, _WHOLE) for name in ("kv_heads", "dim", "made", "cache", "layer")),
        ("value_norm", Gain),
        *((name, Matrix) for name in ("gate", "out")),
        ("input_norm_of_block", Gain),
        ("place", _WHOLE),
        ("factor", ctypes.c_double),
        ("beside", ctypes.POINTER(Block)),
        ("sum_norm", Gain),
    ]


class VariedPass(ctypes.Structure):
    _fields_ = [("caches", ctypes.POINTER(Cache)), ("inputs", _POINTER), ("stride", _WHOLE)]


def unknown_varied(decoder: VariedDecoder) -> str | None:
    """Why the native kernels do not run a decoder's blocks; None if they do."""
    if type(decoder) is not VariedDecoder:
        return f"a {type(decoder).__name__} is not run natively"
    for layer in range(decoder.layers):
        kv_heads, dim = decoder.heads_of(layer)
        if not knows_heads(decoder.config.num_heads, kv_heads, dim):
            return f"heads of {dim} are not"
        parts = decoder.parts_of(layer)
        if not all(map(is_native, parts.projections)):
            return f"layer {layer} has linear layers of another kind"
        unknown = parts.experts and unknown_feed_forward(parts.experts.mixture, decoder.dtype)
        if unknown is not None:
            return f"layer {layer} has {unknown}"
    return unknown_stages(decoder)


class NativeVariedDecoder(InParts, VariedDecoder):
    """A decoder of blocks that :func:`unknown_varied` has nothing against.

    ``in_parts``: wide passes run natively too, part by part.
    """

    def __init__(self, decoder: VariedDecoder, in_parts: bool = False) -> None:
        super().__init__(
            decoder.config,
            decoder.blocks,
            decoder.embedding,
            decoder.final_norm_M,
            decoder.output_head,
            decoder.layer_inputs,
            decoder.sources,
        )
        self.in_parts = in_parts
        self.most_rows = min(MOST_ROWS, most_rows(self.dtype))
        self._shape = shape_of(self)
        heads = [self.heads_of(layer) for layer in range(self.layers)]
        self._shape.kv_heads = max(kv_heads for kv_heads, _ in heads)
        self._shape.dim = max(dim for _, dim in heads)
        for layer in range(self.layers):
            parts = self.parts_of(layer)
            if parts.layer_input is not None:
                self._shape.mlp = max(self._shape.mlp, parts.layer_input.gate.outputs)
            if parts.experts is not None:
                mlp, experts, per_row = feed_forward_sizes(parts.experts.mixture)
                self._shape.mlp = max(self._shape.mlp, mlp)
                self._shape.experts, self._shape.per_row = experts, per_row
        self._native_blocks = (VariedBlock * self.layers)(*map(self._native_block, range(self.layers)))

    def subset(self, layers: Sequence[int]) -> NativeVariedDecoder:
        return NativeVariedDecoder(super().subset(layers), self.in_parts)

    def inputs_of(self, token_BN: torch.Tensor, h_BNM: torch.Tensor) -> torch.Tensor:
        if not self.in_parts or self.narrow(h_BNM):
            return super().inputs_of(token_BN, h_BNM)
        # what projects them rounds the rows of wide passes in other places
        sizes = self.config.layer_inputs
        assert sizes is not None
        requests, rows = token_BN.shape
        input_BNLP = h_BNM.new_empty((requests, rows, sizes.embedded, sizes.size))
        for part in parts(requests, rows, self.most_rows):
            input_BNLP[part] = super().inputs_of(token_BN[part], h_BNM[part].contiguous())
        return input_BNLP

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        cache = work.cache
        assert isinstance(cache, ShapedPassCache)
        if torch.is_grad_enabled() or not all(map(reads_in_place, cache.parts)):
            return None
        if not self.narrow(h_BNM):
            return self.blocks_in_parts(h_BNM, work, first, end) if self.in_parts else None
        h_BNM, rotations = h_BNM.clone(memory_format=torch.contiguous_format), PassRotations(work)
        left = {layer: torch.empty_like(h_BNM) for layer in work.taps if first < layer < end}
        places = (_POINTER * (end - first))()
        for layer, state_BNM in left.items():
            places[layer - first - 1] = state_BNM.data_ptr()
        of_pass, more = Pass.of(work.inputs), VariedPass()
        counts = [sum(place.part == part for place in set(self.places)) for part in range(len(cache.parts))]
        caches = [Cache.of_pass(part, count) for part, count in zip(cache.parts, counts, strict=True)]
        more.caches = (Cache * len(caches))(*caches)
        if isinstance(work, InformedPass) and work.layer_input_BNLP is not None:
            inputs = work.layer_input_BNLP.contiguous()
            more.inputs, more.stride = inputs.data_ptr(), inputs.shape[2] * inputs.shape[3]
        library().spec_varied_blocks(
            DTYPES[self.dtype],
            address(self._shape),
            ctypes.addressof(self._native_blocks[first]),
            end - first,
            address(of_pass),
            address(more),
            h_BNM.data_ptr(),
            rotations.cosines,
            rotations.sines,
            rotations.position,
            ctypes.addressof(places),
            torch.get_num_threads(),
        )
        for layer, state_BNM in left.items():
            work.record(layer, state_BNM)
        work.record(end, h_BNM)
        return h_BNM

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        if self.in_parts and x.dim() > 3:
            # a row has an input for every layer: torch would round those of some passes in other places
            found = rms_norm(x, gain, self.config.rms_norm_eps, most_rows=x.numel())
            if found is not None:
                return found
        return super()._norm(x, gain)

    def _native_block(self, layer: int) -> VariedBlock:
        block, parts, place = self.blocks[layer], self.parts_of(layer), self.places[layer]
        made = VariedBlock(block_of(self, layer, block.input_norm_M), *self.heads_of(layer))
        if self.makes_kv(layer):
            made.made = 1 if self.config.values_are_keys(self.sources[layer]) else 2
        made.cache, made.layer = place.part, place.layer
        made.value_norm = Gain.of(parts.value_norm_D, self.dtype)
        made.factor = parts.scale
        if parts.layer_input is not None:
            made.gate, made.out = map(matrix_of, (parts.layer_input.gate, parts.layer_input.out))
            made.input_norm_of_block = Gain.of(parts.layer_input.norm_M, self.dtype)
            made.place = self.place_of_input(layer)
        if parts.experts is not None:
            made.sum_norm, made.block.mlp_output_norm = made.block.mlp_output_norm, self._gain(parts.experts.mlp_norm_M)
            made.beside = ctypes.pointer(self._mixture(parts.experts))
        return made

    def _mixture(self, of: ExpertsBesideMLP) -> Block:
        """A block of nothing else."""
        *_, experts = feed_forward_of(of.mixture)
        experts.contents.router_norm = self._gain(of.router_gain_M)
        made = Block()
        made.experts = experts
        made.post_norm, made.mlp_output_norm = self._gain(of.input_norm_M), self._gain(of.output_norm_M)
        return made

    def _gain(self, gain_M: torch.Tensor) -> Gain:
        return Gain.of(gain_M, self.dtype)
