"""A pass of a decoder in one native call: tokens in, hidden states and logits out.

Between calls for its embedding, blocks, norm and output head Python takes some percent of a small model's pass.
Processes that have a part of every block each, and share memory, exchange what these make within the call.

Legend: B requests, N rows of a request, n of them that get logits, M model dim, R tokens of the output head, W those of
a rank's part of it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection
from typing import Any

import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.rounded_kv_cache import RoundedKVCache
from spec_sdk.model.tensor_parallel import TensorParallelDecoder
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.ops.reduced_vocabulary import rows_and_tokens
from spec_sdk_backends.native.attention import MOST_ROWS
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.decoder import NativeDecoder, addresses_of
from spec_sdk_backends.native.laid_out import LaidOut
from spec_sdk_backends.native.latent_decoder import RUN_AT_ONCE
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.lookup import entering_lookup, tokens_of
from spec_sdk_backends.native.products import NativeProjection
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_backends.native.ranks import KernelRanks
from spec_sdk_backends.native.structures import DTYPES, Cache, Gain, Model, Pass, Scored, address
from spec_sdk_backends.shared_memory import CAPACITY, SharedMemory, SharingRanks

Passed = tuple[torch.Tensor, dict[int, torch.Tensor], torch.Tensor]
"""What leaves the last block [B, N, M], tapped states, layer → [B, N, M], and logits [B, n, R]."""


def native_whole_pass(decoder: Decoder) -> NativeWholePass | None:
    """None for a decoder with parts that the kernels lack, or one of ranks that share no memory."""
    made = None
    if type(decoder) in RUN_AT_ONCE:
        made = NativeWholePass(decoder)
    elif type(decoder) is TensorParallelDecoder:
        made = _of_shard(decoder)
    return made if made is not None and made.takes_any else None


def _of_shard(decoder: TensorParallelDecoder) -> NativePassOfRanks | None:
    memory = decoder.group.memory if isinstance(decoder.group, SharingRanks) else None
    own = decoder.own
    # the kernels sum no norms over ranks
    cannot_meet = memory is None or decoder.config.wide_qk_norm
    if type(own) not in RUN_AT_ONCE or (decoder.group.size > 1 and cannot_meet):
        return None
    assert isinstance(own, NativeDecoder)
    return NativePassOfRanks(own, decoder, memory)


class NativeWholePass(LaidOut):
    """Runs all blocks one after the other: what a plain runner does."""

    _decoder: NativeDecoder

    def _lent_ranks(self) -> contextlib.AbstractContextManager[int | None]:
        """Those that run it together, for the kernels; None: this process alone."""
        return contextlib.nullcontext()

    def _read_weights(self) -> tuple[Any, ...]:
        decoder = self._decoder
        return decoder.embedding.held, decoder.output_head, decoder.final_norm_M

    def _lay_out(self) -> int:
        decoder = self._decoder
        head, lookup = rows_and_tokens(decoder.output_head)[0], entering_lookup(decoder)
        if type(head) is NativeProjection:
            most_scored = most_rows(decoder.dtype)
        elif type(head) is NativeQuantizedProjection:
            most_scored = most_rows(decoder.dtype, head.quantized.bits, head.rounds)
        else:
            return 0
        if lookup is None or not Gain.suits(decoder.final_norm_M, decoder.dtype):
            return 0
        self._outputs = head.outputs
        self._model = Model(
            decoder.native_shape,
            ctypes.addressof(decoder.native_blocks),
            decoder.layers,
            lookup,
            tokens_of(decoder.embedding),
            Gain.of(decoder.final_norm_M, decoder.dtype),
            head.matrix,
        )
        return min(most_scored, most_rows(decoder.dtype), MOST_ROWS)

    def __call__(self, inputs: PassInputs, cache: KVCache, taps: Collection[int], logits: str) -> Passed | None:
        """``logits``: of ``all`` rows, of each request's ``last`` live one, or ``none``. None, and nothing done, for a
        pass that it does not take.
        """
        self._follow()
        decoder, B, N = self._decoder, inputs.batch, inputs.width
        if self._most_rows < B * N or inputs.flat is None or type(cache) not in (KVCache, RoundedKVCache):
            return None
        if torch.is_grad_enabled() or not all(0 < layer <= decoder.layers for layer in taps):
            return None
        row, count = None, {"all": N, "last": 1, "none": 0}[logits]
        if logits == "last" and N > 1:
            live = inputs.live_B.tolist()
            if min(live) < 1:
                return None
            row = (ctypes.c_int32 * B)(*(b * N + rows - 1 for b, rows in enumerate(live)))
        h_BNM = torch.empty((B, N, decoder.config.hidden_size), dtype=decoder.dtype)
        left = {layer: torch.empty_like(h_BNM) for layer in taps if layer < decoder.layers}
        places = (ctypes.c_void_p * decoder.layers)()
        for layer, state_BNM in left.items():
            places[layer - 1] = state_BNM.data_ptr()
        logits_BnR = torch.empty((B, count, self._outputs), dtype=decoder.dtype)
        scored = Scored(B * count, None if row is None else ctypes.addressof(row), logits_BnR.data_ptr())
        tables = decoder.rotary_tables(cache.capacity)
        cosines, sines = addresses_of(tables)
        of_pass, storage = Pass.of(inputs), Cache.of(cache.k_LSGCD, cache.v_LSGCD)
        with self._lent_ranks() as ranks:
            made = library().spec_forward(
                DTYPES[decoder.dtype],
                address(self._model),
                address(of_pass),
                address(storage),
                # the tokens come first in it
                inputs.flat.data_ptr(),
                ctypes.addressof(cosines),
                ctypes.addressof(sines),
                h_BNM.data_ptr(),
                ctypes.addressof(places),
                address(scored),
                ranks,
                torch.get_num_threads(),
            )
        if not made:
            # the stages say what is wrong
            return None
        if decoder.layers in taps:
            left[decoder.layers] = h_BNM
        return h_BNM, left, decoder.capped(logits_BnR)


class NativePassOfRanks(NativeWholePass):
    """A rank's part, ``own``, in a pass of the decoder ``spread`` over ranks, which share ``memory``.

    All of them call it; one whose stages do the same sends the same messages.
    """

    def __init__(self, own: NativeDecoder, spread: TensorParallelDecoder, memory: SharedMemory | None) -> None:
        self._spread = spread
        self._ranks = None if memory is None else KernelRanks(memory)
        super().__init__(own)

    def _lay_out(self) -> int:
        most = super()._lay_out()
        if self._ranks is None:
            return most
        decoder = self._decoder
        return min(most, CAPACITY // (decoder.config.hidden_size * decoder.dtype.itemsize))

    def _lent_ranks(self) -> contextlib.AbstractContextManager[int | None]:
        return super()._lent_ranks() if self._ranks is None else self._ranks.lent()

    def __call__(self, inputs: PassInputs, cache: KVCache, taps: Collection[int], logits: str) -> Passed | None:
        made = super().__call__(inputs, cache, taps, logits)
        if made is None or logits == "none":
            return made
        h_BNM, hidden, logits_BnW = made
        return h_BNM, hidden, self._spread.gathered(logits_BnW)
