"""A tiny random decoder without a checkpoint on disk."""

from __future__ import annotations

import functools
from typing import Any

import torch

from spec_sdk.model.architectures import read_config
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from tests.support.tiny_checkpoints import checkpoint_tensors, random_model


class ModelTensors(TensorSource):
    """A transformers model in memory as a source of weights."""

    def __init__(self, name: str, seed: int, **overrides: Any) -> None:
        model = random_model(name, seed, **overrides)
        self.config = read_config(model.config.to_dict(), "tests")
        self._tensors = checkpoint_tensors(model)

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)


@functools.cache
def tiny_decoder(name: str = "smollm", seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    """A random decoder of one of the tiny architectures; one object per argument list."""
    return load_decoder(ModelTensors(name, seed), torch.device("cpu"), dtype)


def tiny_executor(
    name: str = "smollm", seed: int = 0, dtype: torch.dtype = torch.float32, ops: Ops | None = None
) -> TorchExecutor:
    """:func:`tiny_decoder` as sessions run it, with these kernels."""
    return TorchExecutor(tiny_decoder(name, seed, dtype), ops or Ops())
