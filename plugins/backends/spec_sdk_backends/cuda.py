"""The CUDA backend: one NVIDIA GPU, tree attention in Triton."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from spec_sdk.contracts import Backend, option
from spec_sdk.errors import UserError
from spec_sdk.model.step_clock import StepClock, StreamClock
from spec_sdk.ops import Ops


@dataclass
class CudaConfig:
    """Options of ``backend=cuda``."""

    index: int = option(0, "which of the visible GPUs", minimum=0)


class CudaBackend(Backend):
    """Tensors in the memory of one GPU, kernels in Triton.

    Raises :class:`UserError` without that GPU or without triton (the extra ``cuda``).
    """

    name = "cuda"
    Config = CudaConfig
    config: CudaConfig

    def __init__(self, config: CudaConfig) -> None:
        if not torch.cuda.is_available():
            raise UserError(f"backend=cuda: torch {torch.__version__} finds no CUDA device here, use backend=cpu")
        count = torch.cuda.device_count()
        if config.index >= count:
            raise UserError(f"backend.index: {config.index} must be 0 to {count - 1}: {count} GPUs are visible")
        if importlib.util.find_spec("triton") is None:
            raise UserError("backend=cuda: triton is not installed: pip install 'spec-sdk[cuda]', or use backend=cpu")
        super().__init__(config)
        # triton is imported here and not above, so that listing plugins works on machines without it
        from spec_sdk_backends.triton_ops import TritonOps

        self._device = torch.device("cuda", config.index)
        # triton launches on the current device, whatever the tensors say
        torch.cuda.set_device(self._device)
        self._ops = TritonOps()

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def ops(self) -> Ops:
        return self._ops

    def describe(self) -> str:
        properties = torch.cuda.get_device_properties(self._device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"

    def clock(self) -> StepClock:
        return StreamClock()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
