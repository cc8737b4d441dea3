"""A decoder with recurrent layers whose narrow passes run natively, consecutive blocks in one call.

Wide passes, and runners that need the stages of single blocks, take those of torch, with the kernels of each.

Legend: B requests, N rows of a request, M model dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.recurrent.cache import RecurrentPassCache
from spec_sdk.model.recurrent.decoder import RecurrentDecoder
from spec_sdk.model.recurrent.layers import RecurrentMixer
from spec_sdk.ranks import Ranks
from spec_sdk_backends.native.attention import MOST_ROWS, reads_in_place
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.decoder import PassRotations, block_of, shape_of, unknown_stages
from spec_sdk_backends.native.feed_forward import matrix_of
from spec_sdk_backends.native.in_parts import InParts
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.mixers import NativeDeltaNet, NativeShortConvolution, NativeStateSpace
from spec_sdk_backends.native.ranks import KernelRanks
from spec_sdk_backends.native.recurrent_structures import Convolution, DeltaNet, Kept, StateSpace
from spec_sdk_backends.native.structures import DTYPES, Block, Cache, Matrix, Pass, address
from spec_sdk_backends.shared_memory import CAPACITY, SharingRanks

_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p


class MixedBlock(ctypes.Structure):
    _fields_ = [
        ("block", Block),
        ("matrices", _WHOLE),
        ("entering", ctypes.POINTER(Matrix)),
        ("delta", ctypes.POINTER(DeltaNet)),
        ("convolution", ctypes.POINTER(Convolution)),
        ("space", ctypes.POINTER(StateSpace)),
        ("leaving", Matrix),
        ("gated", _WHOLE),
    ]


def unknown_recurrent(decoder: RecurrentDecoder) -> str | None:
    """Why the native kernels do not run a decoder's blocks; None if they do."""
    if type(decoder) is not RecurrentDecoder:
        return f"a {type(decoder).__name__} is not run natively"
    for layer, mixer in decoder.mixers.items():
        if not _known(mixer, decoder.dtype):
            return f"layer {layer} has a {type(mixer).__name__}"
        block = decoder.blocks[layer]
        if block.attends and block.attention_output_norm_M is not None:
            return f"layer {layer} has one norm of what a state and attention give"
    return unknown_stages(decoder)


class NativeRecurrentDecoder(InParts, RecurrentDecoder):
    """A decoder of blocks that :func:`unknown_recurrent` has nothing against.

    ``in_parts``: wide passes run natively too, part by part.
    """

    def __init__(self, decoder: Decoder, in_parts: bool = False) -> None:
        super().__init__(
            decoder.config,
            decoder.blocks,
            decoder.embedding,
            decoder.final_norm_M,
            decoder.output_head,
            sources=decoder.sources,
        )
        self.in_parts = in_parts
        self.most_rows = min(MOST_ROWS, most_rows(self.dtype))
        self._shape = shape_of(self)
        self._ranks: KernelRanks | None = None
        self._native_blocks = (MixedBlock * self.layers)(*map(self._native_block, range(self.layers)))

    def subset(self, layers: Sequence[int]) -> NativeRecurrentDecoder:
        made = NativeRecurrentDecoder(super().subset(layers), self.in_parts)
        made.takes_snapshots = self.takes_snapshots
        return made

    def blocks_at_once(self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int) -> torch.Tensor | None:
        if torch.is_grad_enabled() or not reads_in_place(work.cache):
            return None
        if not self.narrow(h_BNM):
            if not self.in_parts:
                return None
            assert isinstance(work.cache, RecurrentPassCache)
            h_BNM = self.blocks_in_parts(h_BNM, work, first, end)
            _end(work.cache, self._carrying(first, end))
            return h_BNM
        return self._narrow_blocks(h_BNM, work, first, end)

    def blocks_of_ranks(
        self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int, ranks: Ranks
    ) -> torch.Tensor | None:
        memory = ranks.memory if isinstance(ranks, SharingRanks) else None
        if memory is None or not (self.narrow(h_BNM) and h_BNM.nbytes <= CAPACITY and reads_in_place(work.cache)):
            return None
        if self._ranks is None:
            self._ranks = KernelRanks(memory)
        with self._ranks.lent() as lent:
            return self._narrow_blocks(h_BNM, work, first, end, lent)

    def _narrow_blocks(
        self, h_BNM: torch.Tensor, work: ForwardPass, first: int, end: int, ranks: int | None = None
    ) -> torch.Tensor:
        """``ranks``: the address of those that have a part of every block each."""
        cache, carrying = work.cache, self._carrying(first, end)
        assert isinstance(cache, RecurrentPassCache)
        kept = _begin(cache, carrying)
        h_BNM, rotations = h_BNM.clone(memory_format=torch.contiguous_format), PassRotations(work)
        left = {layer: torch.empty_like(h_BNM) for layer in work.taps if first < layer < end}
        places = (_POINTER * (end - first))()
        for layer, state_BNM in left.items():
            places[layer - first - 1] = state_BNM.data_ptr()
        of_pass, storage = Pass.of(work.inputs), Cache.of(*cache.of_attention())
        library().spec_mixed_blocks(
            DTYPES[self.dtype],
            address(self._shape),
            ctypes.addressof(self._native_blocks[first]),
            end - first,
            address(of_pass),
            address(storage),
            sum(layer < first for layer in self.attending),
            ctypes.addressof(kept),
            h_BNM.data_ptr(),
            rotations.cosines,
            rotations.sines,
            rotations.position,
            ctypes.addressof(places),
            ranks,
            torch.get_num_threads(),
        )
        _end(cache, carrying)
        for layer, state_BNM in left.items():
            work.record(layer, state_BNM)
        work.record(end, h_BNM)
        return h_BNM

    def _carrying(self, first: int, end: int) -> list[int]:
        return [layer for layer in range(first, end) if layer in self.mixers]

    def _native_block(self, layer: int) -> MixedBlock:
        block, made = self.blocks[layer], MixedBlock()
        entering, leaving = [*block.qkv.parts], [*block.output.parts]
        # those of attention are the last ones
        attention = (matrix_of(entering.pop()), matrix_of(leaving.pop())) if block.attends else (Matrix(), Matrix())
        made.block = block_of(self, layer, block.input_norm_M, attention)
        made.gated = block.attends and self.config.attention_gate
        mixer = self.mixers.get(layer)
        if mixer is None:
            return made
        made.matrices, made.entering = len(entering), (Matrix * len(entering))(*map(matrix_of, entering))
        (made.leaving,) = map(matrix_of, leaving)
        if isinstance(mixer, NativeDeltaNet):
            made.delta = ctypes.pointer(mixer.native)
        elif isinstance(mixer, NativeStateSpace):
            made.space = ctypes.pointer(mixer.native)
        else:
            assert isinstance(mixer, NativeShortConvolution)
            made.convolution = ctypes.pointer(mixer.native)
        return made


def _known(mixer: RecurrentMixer, dtype: torch.dtype) -> bool:
    """Whether the kernels compute what a layer has in the place of attention, of rows in ``dtype``."""
    if isinstance(mixer, NativeShortConvolution):
        return mixer.convolution.weight_CK.dtype == dtype
    return isinstance(mixer, NativeDeltaNet | NativeStateSpace)


def _begin(cache: RecurrentPassCache, layers: Sequence[int]) -> Any:
    """What is kept of every request in these layers, with room for the pass's rows: an array of :class:`Kept`."""
    parts = cache.inputs.parts
    kept = (Kept * (len(layers) * len(parts)))()
    for b, part in enumerate(parts):
        paths = cache.paths(part)
        for i, layer in enumerate(layers):
            state = cache.state(layer, part.slot)
            state.go_on(paths.prefix, paths.end)
            state.look_ahead(paths.prefix, paths.last_position)
            kept[i * len(parts) + b] = Kept.of(state)
    return kept


def _end(cache: RecurrentPassCache, layers: Sequence[int]) -> None:
    for part in cache.inputs.parts:
        paths = cache.paths(part)
        if paths.is_prompt:
            for layer in layers:
                state = cache.state(layer, part.slot)
                state.settle(paths.end)
                state.mark()
