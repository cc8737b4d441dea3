"""The CPU backend: plain torch on the host."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.contracts import Backend, option
from spec_sdk.errors import UserError
from spec_sdk.model.compilation import Compilation, choice_of
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.linear import Projection, ProjectionStack, SeparateProjections
from spec_sdk_backends.packed_projections import PackedProjection, can_pack
from spec_sdk_backends.thread_waiting import CHOICES, ThreadWaiting

MOST_THREADS_PER_CORE = 4


@dataclass
class CpuConfig:
    """Options of ``backend=cpu``."""

    threads: int = option(
        0,
        f"threads that torch may use, up to {MOST_THREADS_PER_CORE} per core",
        minimum=0,
        means={0: "torch's own choice, one per core"},
    )
    pack_weights: bool = option(
        True,
        "linear layers in oneDNN's layout: faster; an embedding that is also the output head is held twice",
    )
    compile: Any = option(
        "auto",
        "the small operations between the products as compiled graphs",
        choices={True: "", False: "", "auto": "where the run is expected to save more than compiling takes"},
    )
    wait: str = option("auto", "how threads wait for one another", choices=CHOICES)


class CpuOps(Ops):
    """The reference operations, with packed linear layers for the dtypes that this machine can pack.

    ``waiting``: how threads wait during a pass; None leaves it as it is.
    """

    def __init__(self, pack_weights: bool = True, waiting: ThreadWaiting | None = None) -> None:
        self._pack_weights = pack_weights
        self._waiting = waiting

    def before_pass(self) -> None:
        if self._waiting is not None:
            self._waiting.before_pass()

    def projection(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None) -> Projection:
        if not self._pack_weights or not can_pack(weight_OI.dtype):
            return super().projection(weight_OI, bias_O)
        return PackedProjection(weight_OI, bias_O)

    def projections(self, weight_LOI: torch.Tensor, bias_LO: torch.Tensor | None = None) -> ProjectionStack:
        if not self._pack_weights or not can_pack(weight_LOI.dtype):
            return super().projections(weight_LOI, bias_LO)
        biases = [None] * len(weight_LOI) if bias_LO is None else list(bias_LO)
        return SeparateProjections([PackedProjection(w, b) for w, b in zip(weight_LOI, biases, strict=True)])


class CpuBackend(Backend):
    """Tensors in host memory, the reference operations, linear layers packed for oneDNN."""

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
        self._ops = CpuOps(config.pack_weights, self._waiting)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def ops(self) -> Ops:
        return self._ops

    def expect(self, tokens: int) -> None:
        super().expect(tokens)
        self._compilation.tokens = tokens

    @property
    def compiled(self) -> Mapping[str, Any]:
        return self._compilation.report()

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        decoder = load_decoder(checkpoint, self.device, dtype, self.ops)
        self._waiting.loaded()
        return TorchExecutor(self._compilation.of(decoder), self.ops)

    @property
    def hardware(self) -> str:
        return f"{_processor_name()}, {torch.get_num_threads()} threads"

    def describe(self) -> str:
        return f"{_processor_name()}, {self._waiting.describe()}"


def check_threads(threads: int) -> None:
    """Raise UserError for more threads than this machine could use."""
    most = MOST_THREADS_PER_CORE * (os.cpu_count() or 1)
    if threads > most:
        raise UserError(f"backend.threads: {threads} must be at most {most} on this machine; 0 is torch's own choice")


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
