"""The CUDA backend: one NVIDIA GPU, tree attention in Triton."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spec_sdk.contracts import AttentionVerifier, Backend, BlockRunner, Finding, Predictor, Suitability, option
from spec_sdk.errors import UserError
from spec_sdk.model.compilation import choice_of
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.executor import Executor
from spec_sdk.model.graph_executor import GraphExecutor
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.step_clock import StepClock, StreamClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk_backends.cuda_graphs import GraphCapture

RANK = 100
"""Among the backends of one machine: before the CPU's 0."""
BFLOAT16_SINCE = 8
"""The compute capability (Ampere) whose tensor cores multiply it."""
NO_TRITON = "triton is not installed: pip install 'spec-sdk[cuda]'"


def no_device() -> str:
    """Why torch finds no GPU, and what to install or change."""
    from spec_sdk_backends.diagnosis import nvidia_driver

    driver, found = nvidia_driver(), f"torch {torch.__version__} finds no CUDA device"
    if driver is None:
        return f"{found}, and no NVIDIA driver is seen: with a GPU, install its driver and a torch built for CUDA"
    if torch.version.cuda is None:
        return f"{found}: it is built without CUDA; install one from https://pytorch.org/get-started"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"{found}: CUDA_VISIBLE_DEVICES={hidden} may hide it"
    return f"{found}: it is built for CUDA {torch.version.cuda}, for which driver {driver} may be too old; update it"


@dataclass
class CudaConfig:
    """Options of ``backend=cuda``."""

    index: int = option(0, "which of the visible GPUs", minimum=0)
    compile: Any = option(
        "auto",
        "short passes as CUDA graphs, one for each size",
        choices={True: "", False: "", "auto": "true, but for a cache of K and V in other bits than the model's"},
    )
    fuse: Any = option(
        "auto",
        "small operations of a block in four launches, or in its products where a pass is of at most 64 tokens",
        choices={True: "", False: "", "auto": "true"},
    )
    verdicts: str = option(
        "auto",
        "with compile, when the verdicts on sampled trees are launched",
        choices={
            "inside": "in the pass's graph: their tables are made before it; of trees drafted in one launch after it",
            "after": "after it: their tables are made while it runs",
            "auto": "after, which took less time on an H200; greedy ones need no tables, and are always inside",
        },
    )


class CudaBackend(Backend):
    """Tensors in the memory of one GPU, kernels in Triton.

    Raises :class:`UserError` without that GPU or without triton (the extra ``cuda``).
    """

    name = "cuda"
    aliases = ("gpu",)
    Config = CudaConfig
    config: CudaConfig

    def __init__(self, config: CudaConfig) -> None:
        if not torch.cuda.is_available():
            raise UserError(f"backend=cuda: {no_device()}, or use backend=cpu")
        count = torch.cuda.device_count()
        if config.index >= count:
            raise UserError(f"backend.index: {config.index} must be 0 to {count - 1}: {count} GPUs are visible")
        if importlib.util.find_spec("triton") is None:
            raise UserError(f"backend=cuda: {NO_TRITON}, or use backend=cpu")
        super().__init__(config)
        self._compile = choice_of(config.compile, "backend.compile")
        self._fuse = choice_of(config.fuse, "backend.fuse")
        self._fuses = self._fuse != "false"
        self._unfused_because = ""
        # triton is imported here and not above, so that listing plugins works on machines without it
        from spec_sdk_backends.triton_ops import TritonOps

        self._device = torch.device("cuda", config.index)
        # for what is launched between passes; each thread has a current device of its own
        torch.cuda.set_device(self._device)
        self._capture = GraphCapture(self._device) if self._compile != "false" else None
        self._ops: Ops = TritonOps(
            decides_in_pass=config.verdicts == "inside", device=self._device, fuses_heads=self._fuses
        )
        self._ops.capture = self._capture

    def be_deterministic(self) -> None:
        if self._fuse == "false":
            raise UserError("deterministic: it takes the fused launches; leave out backend.fuse=false")
        from spec_sdk_backends.deterministic_ops import DeterministicOps

        ops = DeterministicOps(decides_in_pass=self.config.verdicts == "inside", device=self._device)
        ops.capture = self._capture
        self._ops, self._fuses, self.deterministic = ops, True, True

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def ops(self) -> Ops:
        return self._ops

    @property
    def tolerances(self) -> Mapping[torch.dtype, float]:
        # products of float32 are made of three of tf32
        return {torch.float32: 1e-3, torch.bfloat16: 0.1}

    @classmethod
    def suitability(cls, config: CudaConfig) -> Suitability:
        if not torch.cuda.is_available():
            return Suitability(False, no_device(), RANK)
        if importlib.util.find_spec("triton") is None:
            return Suitability(False, NO_TRITON, RANK)
        properties = torch.cuda.get_device_properties(min(config.index, torch.cuda.device_count() - 1))
        # older ones compute bfloat16 in float32
        dtype = "bfloat16" if properties.major >= BFLOAT16_SINCE else "float32"
        return Suitability(True, f"{properties.name}, and Triton is installed", RANK, dtype)

    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        from spec_sdk_backends.diagnosis import cuda_findings

        return list(cuda_findings())

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        decoder = load_decoder(checkpoint, self.device, dtype, self.ops)
        if self._fuses:
            from spec_sdk_backends.fused_decoder import FusedDecoder, unfused_because

            self._unfused_because = unfused_because(decoder) or ""
            decoder = decoder if self._unfused_because else FusedDecoder(decoder)
        executor = self._running(decoder)
        if self.deterministic:
            from spec_sdk_backends.deterministic_ops import bits_vary_of

            executor.bits_vary = bits_vary_of(executor, self._unfused_because)
        return executor

    def _running(self, decoder: Decoder) -> TorchExecutor:
        if self._capture is None or not attends_in_kernels(decoder):
            return TorchExecutor(decoder, self.ops)
        return GraphExecutor(decoder, self.ops, self._capture, insists=self._compile == "true")

    def attention_runner(
        self, executor: Executor, make_predictor: Callable[[], Predictor], verifier: AttentionVerifier
    ) -> BlockRunner | None:
        """Hit or miss inside a captured pass; None where passes are not captured, or it cannot be done there."""
        if not (isinstance(executor, GraphExecutor) and executor.one_launch):
            return None
        from spec_sdk_backends.overlapped_speculation import OverlappedSpeculationRunner

        predictor = make_predictor()
        ends, why = predictor.ends, OverlappedSpeculationRunner.unsuited_because(executor.decoder, predictor, verifier)
        return None if ends is None or why else OverlappedSpeculationRunner(verifier, ends)

    @property
    def compiled(self) -> Mapping[str, Any]:
        graphs = {} if self._capture is None else {"graphs": self._capture.captures}
        failures = {
            "unfused_because": self._unfused_because,
            "not_captured_because": "" if self._capture is None else self._capture.failure,
        }
        return {**graphs, **{name: why for name, why in failures.items() if why}}

    def describe(self) -> str:
        properties = torch.cuda.get_device_properties(self._device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"

    def clock(self) -> StepClock:
        return StreamClock(self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


def attends_in_kernels(decoder: Decoder) -> bool:
    """Whether a kernel has heads of this size; torch's attention cannot be captured."""
    from spec_sdk_backends.tree_attention import MAX_HEAD_DIM, MAX_SHARED_DIM

    latent, heads = decoder.config.latent, decoder.config.global_heads
    if heads is not None and heads.head_dim > MAX_HEAD_DIM:
        return False
    return latent is None or (decoder.dtype.itemsize == 2 and latent.width <= MAX_SHARED_DIM)
