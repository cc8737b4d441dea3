"""The operations of the CPU backend with native kernels.

Legend: L layers, O outputs, I inputs, g layers of a run, B requests, N rows, H query heads, D head dim, M model dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spec_sdk.ops import Ops, PendingDecision, Rule, ScoredTree
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.ops.draws import Drawing
from spec_sdk.ops.linear import Projection, ProjectionStack
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.rounded_pass_cache import RoundedPassCache
from spec_sdk.ops.rows import Shaping
from spec_sdk.ops.types import PLAIN, Announce, AttentionSpec, Ends, SpeculativeAttention
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk_backends.native.attention import attends, attention, expanded, reads_in_place, takes
from spec_sdk_backends.native.crossover import most_rows
from spec_sdk_backends.native.growing import NativePathGrower, native_path_grower
from spec_sdk_backends.native.growing_projection import GrowingProjection
from spec_sdk_backends.native.head_block import NativeHeadBlock, native_head_block
from spec_sdk_backends.native.library import library
from spec_sdk_backends.native.mass import drawing
from spec_sdk_backends.native.mixers import native_mixer
from spec_sdk_backends.native.norm import rms_norm
from spec_sdk_backends.native.products import NativeProjection, NativeProjectionStack
from spec_sdk_backends.native.quantized import NativeQuantizedProjection
from spec_sdk_backends.native.speculative import speculative_attention
from spec_sdk_backends.native.structures import DTYPES
from spec_sdk_backends.native.top import top_log_probabilities
from spec_sdk_backends.native.verdicts import with_native_rows
from spec_sdk_backends.native.whole_pass import NativeWholePass, native_whole_pass
from spec_sdk_backends.thread_waiting import ThreadWaiting

SPINS = {False: 20_000, True: 100}
"""How often a thread looks for the others before it sleeps, by whether threads shall sleep: for some tenths of a
millisecond, or as often as libgomp's then do.
"""


class NativeOps(Ops):
    """Narrow passes, drafting and sampling by the native kernels; ``other`` keeps dtypes that they lack.

    ``waiting``: how threads wait within a call; without it, as the process was told last. ``rounds``: rows are rounded
    to 8 bits before they are multiplied with weights in few bits.
    """

    cache_forms = frozenset({"exact", "bfloat16"})

    def __init__(self, other: Ops, waiting: ThreadWaiting | None = None, rounds: bool = False) -> None:
        self.other = other
        self._waiting = waiting
        self.rounds_rows = rounds
        self._rows_are: torch.dtype | None = None

    def take_rows_of(self, dtype: torch.dtype) -> None:
        """Rows will be of ``dtype``: what must be measured for linear layers is measured as soon as they are made, so
        that no run waits for it.
        """
        self._rows_are = dtype if dtype in DTYPES else None

    def before_pass(self) -> None:
        self.other.before_pass()
        if self._waiting is not None:
            library().spec_wait(SPINS[self._waiting.asleep])

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        if weight_OI.dtype not in DTYPES:
            return self.other.projection(weight_OI, bias_O)
        self._measure()
        return NativeProjection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        if weight_LOI.dtype not in DTYPES:
            return self.other.projections(weight_LOI, bias_LO)
        self._measure()
        return NativeProjectionStack(weight_LOI, bias_LO)

    def with_rows(self, projection: Projection | None, weight_KI: torch.Tensor) -> Projection:
        if weight_KI.dtype not in DTYPES:
            return self.other.with_rows(projection, weight_KI)
        added = GrowingProjection(weight_KI.shape[1], weight_KI.dtype) if projection is None else projection
        assert isinstance(added, GrowingProjection)
        return added.with_rows(weight_KI)

    def fast_in_bits(self, bits: int, dtype: torch.dtype) -> bool:
        return dtype in DTYPES

    def quantized_projection(self, matrix: QuantizedMatrix, bias_O: torch.Tensor | None = None) -> Projection:
        made = NativeQuantizedProjection(matrix, bias_O, self.rounds_rows)
        self._measure(made.quantized.bits, self.rounds_rows)
        return made

    def _measure(self, bits: int = 0, rounds: bool = False) -> None:
        if self._rows_are is not None:
            most_rows(self._rows_are, bits, rounds)

    def head_block(self, head: Any) -> NativeHeadBlock | None:
        return native_head_block(head)

    def recurrent_mixer(self, mixer: Any) -> Any:
        return native_mixer(mixer)

    def whole_pass(self, decoder: Any) -> NativeWholePass | None:
        return native_whole_pass(decoder)

    def path_grower(self, decoder: Any) -> NativePathGrower | None:
        return native_path_grower(decoder)

    def rms_norm(self, x: torch.Tensor, gain_M: torch.Tensor, epsilon: float) -> torch.Tensor:
        found = rms_norm(x, gain_M, epsilon)
        return self.other.rms_norm(x, gain_M, epsilon) if found is None else found

    def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = top_log_probabilities(logits_NV, min(count, logits_NV.shape[-1]))
        return self.other.top_log_probabilities(logits_NV, count) if found is None else found

    def drawing(self, logits: torch.Tensor | SomeLogits, shaping: Shaping) -> Drawing | None:
        return drawing(logits, shaping)

    def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
        if rule in ("multi_step", "naive"):
            scored = [with_native_rows(tree) for tree in scored]
        return super().accept(rule, scored)

    def keys_to_read(self, cache: PassCache, index: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(cache, RoundedPassCache):
            return cache.stored(index, layer, layer + 1)
        return super().keys_to_read(cache, index, layer)

    def speculative_attention(
        self,
        q_BNHD: torch.Tensor,
        k_BGSD: torch.Tensor,
        v_BGSD: torch.Tensor,
        mask: AttentionMask,
        ends: int | Ends,
        announce: Announce | None = None,
    ) -> SpeculativeAttention:
        found = speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, Ends.of(ends), announce)
        if found is not None:
            return found
        k_BGSD, v_BGSD = k_BGSD.to(q_BNHD.dtype), v_BGSD.to(q_BNHD.dtype)
        return super().speculative_attention(q_BNHD, k_BGSD, v_BGSD, mask, ends, announce)

    def cached_attention(
        self, q_gBNHD: torch.Tensor, cache: PassCache, first: int, spec: AttentionSpec = PLAIN
    ) -> torch.Tensor:
        if not reads_in_place(cache) and takes(q_gBNHD):
            # the kernel adds up a row's keys in one order whatever is beside it; what differs by a last bit would be
            # rounded to another code in the next layer
            cache, first = expanded(cache, first, first + q_gBNHD.shape[0]), 0
        if not reads_in_place(cache) or not attends(q_gBNHD, cache.layers(first, first + 1)[0]):
            return super().cached_attention(q_gBNHD, cache, first, spec)
        return attention(q_gBNHD, cache, first, spec)
