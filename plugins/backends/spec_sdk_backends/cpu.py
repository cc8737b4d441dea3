"""The CPU backend: torch on the host, with native kernels where this machine has a compiler."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.bench.machine import processor_name
from spec_sdk.contracts import Backend, Finding, Suitability, option
from spec_sdk.errors import UserError
from spec_sdk.model.compilation import Compilation, choice_of
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.recurrent.decoder import RecurrentDecoder
from spec_sdk.model.shards import ShardedSource
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection, ProjectionStack, SeparateProjections
from spec_sdk_backends.native.decoder import leave_rows_exact, unknown_block
from spec_sdk_backends.native.latent_decoder import native_decoder
from spec_sdk_backends.native.library import find, uses_amx
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_backends.native.prompts_in_parts import blocks_round_rows, runs_in_parts
from spec_sdk_backends.native.recurrent_decoder import NativeRecurrentDecoder, unknown_recurrent
from spec_sdk_backends.native.structures import DTYPES
from spec_sdk_backends.native.varied_decoder import NativeVariedDecoder, unknown_varied
from spec_sdk_backends.packed_projections import PackedProjection, can_pack
from spec_sdk_backends.thread_waiting import CHOICES, ThreadWaiting

MOST_THREADS_PER_CORE = 4
AUTO, EXACT, IN_8_BITS = "auto", "exact", "int8"
ACTIVATIONS = {
    AUTO: "int8 where native kernels run whole blocks, so that no row changes the result of another, else exact",
    EXACT: "as they are",
    IN_8_BITS: "rounded to 8 bits in groups of 32, as llama.cpp does; faster, above all in passes of many nodes",
}
"""How the rows of a pass are multiplied with weights in few bits."""


@dataclass
class CpuConfig:
    """Options of ``backend=cpu``."""

    threads: int = option(
        0,
        f"threads that torch may use, up to {MOST_THREADS_PER_CORE} per core",
        minimum=0,
        means={0: "torch's own choice, one per core"},
    )
    native: Any = option(
        "auto",
        "kernels in C++ for passes of few rows",
        choices={True: "", False: "", "auto": "where this machine's compiler makes them"},
    )
    pack_weights: bool = option(
        True,
        "without native kernels: linear layers in oneDNN's layout, an embedding that is also the output head held "
        "twice; false: plain torch, no native kernels",
    )
    activations: str = option(
        AUTO, "the rows of a pass, where they are multiplied with weights in few bits", choices=ACTIVATIONS
    )
    compile: Any = option(
        "auto",
        "the small operations between the products as compiled graphs",
        choices={True: "", False: "", "auto": "where the run is expected to save more than compiling takes"},
    )
    wait: str = option("auto", "how threads wait for one another", choices=CHOICES)


class CpuOps(Ops):
    """The reference operations, with packed linear layers for the dtypes that this machine can pack.

    ``waiting``: how threads wait during a pass; None leaves it as it is. ``rounds``: rows are rounded to 8 bits before
    they are multiplied with weights in few bits.
    """

    def __init__(self, pack_weights: bool = True, waiting: ThreadWaiting | None = None, rounds: bool = False) -> None:
        self._pack_weights = pack_weights
        self._waiting = waiting
        self.rounds_rows = rounds

    def before_pass(self) -> None:
        if self._waiting is not None:
            self._waiting.before_pass()

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        if not self._pack_weights or not can_pack(weight_OI.dtype):
            return super().projection(weight_OI, bias_O)
        return PackedProjection(weight_OI, bias_O)

    def with_rows(self, projection: Projection | None, weight_KI: torch.Tensor) -> Projection:
        # packing anew takes longer than plain products of so few outputs
        return Projection(weight_KI if projection is None else torch.cat((projection.weight_OI, weight_KI)))

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        if not self._pack_weights or not can_pack(weight_LOI.dtype):
            return super().projections(weight_LOI, bias_LO)
        biases = [None] * len(weight_LOI) if bias_LO is None else list(bias_LO)
        return SeparateProjections([PackedProjection(w, b) for w, b in zip(weight_LOI, biases, strict=True)])


class CpuBackend(Backend):
    """Tensors in host memory; native kernels, or the reference operations and linear layers packed for oneDNN."""

    name = "cpu"
    Config = CpuConfig
    config: CpuConfig

    def __init__(self, config: CpuConfig) -> None:
        check_threads(config.threads)
        super().__init__(config)
        self._compilation = Compilation(choice_of(config.compile, "backend.compile"), "backend.compile")
        if config.threads:
            torch.set_num_threads(config.threads)
        self._waiting = ThreadWaiting(config.wait)
        self._told = False
        self._activations = config.activations
        self._native = choice_of(config.native, "backend.native")
        if self._native == "true":
            if not config.pack_weights:
                raise UserError("backend.native=true: backend.pack_weights=false asks for plain torch; leave one out")
            if self._no_native_kernels:
                raise UserError(f"backend.native=true: {self._no_native_kernels}; use backend.native=auto")

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @functools.cached_property
    def ops(self) -> Ops:
        native = not self._no_native_kernels
        rounds = self._activations == IN_8_BITS or (self._activations == AUTO and native)
        other = CpuOps(self.config.pack_weights, self._waiting, rounds)
        return NativeOps(other, self._waiting, rounds) if native else other

    @functools.cached_property
    def _no_native_kernels(self) -> str:
        """Why there are no native kernels; empty if there are."""
        if self._native == "false" or not self.config.pack_weights:
            return "they are turned off"
        found = find()
        return found if isinstance(found, str) else ""

    def be_deterministic(self) -> None:
        if self._no_native_kernels:
            raise UserError(f"deterministic: it takes the native kernels: {self._no_native_kernels}")
        if self._compilation.choice == "true":
            raise UserError("deterministic: compiled graphs round in other places; leave out backend.compile=true")
        self.deterministic = True

    def keep_rows_exact(self) -> None:
        if self._activations == AUTO:
            self._activations = EXACT

    def expect(self, tokens: int) -> None:
        super().expect(tokens)
        self._compilation.tokens = tokens

    @property
    def compiled(self) -> Mapping[str, Any]:
        return self._compilation.report()

    @property
    def tolerances(self) -> Mapping[torch.dtype, float]:
        return {torch.float32: 1e-4, torch.bfloat16: 0.1}

    @classmethod
    def suitability(cls, config: CpuConfig) -> Suitability:
        return Suitability(True, "", rank=0)

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        from spec_sdk_backends.diagnosis import cpu_findings

        return list(cpu_findings())

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        self._tell_of_slow_kernels()
        if isinstance(self.ops, NativeOps):
            self.ops.take_rows_of(dtype)
        decoder = load_decoder(checkpoint, self.device, dtype, self.ops)
        self._waiting.loaded()
        not_native = self._not_native(decoder)
        if not_native is None:
            self._compilation.eager_because = "the native kernels run whole blocks"
            if isinstance(decoder, RecurrentDecoder):
                return self._with_states(decoder)
            if isinstance(decoder, VariedDecoder):
                return self._varied(decoder)
            # a shard's wide passes go stage by stage
            divided = isinstance(checkpoint, ShardedSource)
            in_parts = self.deterministic or (not divided and runs_in_parts(decoder, self.ops))
            bits_vary = None if in_parts else "wide passes are torch's"
            executor = TorchExecutor(native_decoder(decoder, in_parts), self.ops, bits_vary)
            if blocks_round_rows(decoder):
                # K and V come of such products: their own rounding is finer
                executor.keep_cache_in("bfloat16")
            return executor
        if self._activations == AUTO:
            # a row of torch's hangs on those beside it, by last bits that tip codes
            leave_rows_exact(decoder)
        return TorchExecutor(self._compilation.of(decoder), self.ops, not_native)

    def _with_states(self, decoder: RecurrentDecoder) -> Executor:
        native = NativeRecurrentDecoder(decoder, in_parts=self.deterministic or blocks_round_rows(decoder))
        native.takes_snapshots = not self.deterministic
        vary = None if self.deterministic else "a text that goes on from a snapshot of states rounds in other places"
        return TorchExecutor(native, self.ops, vary)

    def _varied(self, decoder: VariedDecoder) -> Executor:
        rounds = blocks_round_rows(decoder)
        in_parts = self.deterministic or rounds
        vary = None if in_parts else "wide passes are torch's"
        executor = TorchExecutor(NativeVariedDecoder(decoder, in_parts), self.ops, vary)
        if rounds:
            executor.keep_cache_in("bfloat16")
        return executor

    def _not_native(self, decoder: Decoder) -> str | None:
        """Why a decoder's blocks do not run in the native kernels, whose rows do not depend on one another."""
        if self._no_native_kernels:
            return f"there are no native kernels: {self._no_native_kernels}"
        if self._compilation.choice == "true":
            return "compiled graphs run it"
        if decoder.dtype not in DTYPES:
            dtype = str(decoder.dtype).removeprefix("torch.")
            return f"the native kernels do not compute in {dtype}; use model.dtype=float32 or bfloat16"
        if isinstance(decoder, RecurrentDecoder):
            unknown = unknown_recurrent(decoder)
        else:
            unknown = unknown_varied(decoder) if isinstance(decoder, VariedDecoder) else unknown_block(decoder)
        return unknown and f"the native kernels do not run its blocks: {unknown}"

    def _tell_of_slow_kernels(self) -> None:
        if self._kernels_missed and not self._told:
            self._told = True
            print(f"warning: no native kernels: {self._no_native_kernels}; decoding is slower", file=sys.stderr)

    @property
    def _kernels_missed(self) -> bool:
        """Whether there are no native kernels although nobody turned them off."""
        return bool(self._native == "auto" and self.config.pack_weights and self._no_native_kernels)

    @property
    def hardware(self) -> str:
        return f"{processor_name()}, {torch.get_num_threads()} threads"

    def describe(self) -> str:
        machine = f"{processor_name()}, {self._waiting.describe()}"
        if not self._no_native_kernels:
            return f"{machine}, native kernels{' with AMX' if uses_amx() else ''}"
        return f"{machine}, no native kernels: {self._no_native_kernels}" if self._kernels_missed else machine


def check_threads(threads: int) -> None:
    """Raise UserError for more threads than this machine could use."""
    most = MOST_THREADS_PER_CORE * (os.cpu_count() or 1)
    if threads > most:
        raise UserError(f"backend.threads: {threads} must be at most {most} on this machine; 0 is torch's own choice")
