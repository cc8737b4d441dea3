"""The adapter of the real ttnn, on a stand-in that does what TT-NN's documentation says: it has seen no device."""

from __future__ import annotations

import importlib.metadata
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from spec_sdk.contracts import BlockRunner
from spec_sdk.errors import UserError
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.testing import check_executor
from spec_sdk.testing.executors import check_batches, check_chains
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.side_by_side import SideBySide
from spec_sdk_backends.ttnn.backend import TtnnBackend, TtnnConfig
from spec_sdk_backends.ttnn.device import DeviceOperations
from spec_sdk_backends.ttnn.executor import TtnnExecutor
from spec_sdk_backends.ttnn.model import load_model
from spec_sdk_backends.ttnn.operations import Operations
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from tests.ttnn.documented_ttnn import documented_ttnn

RUNNERS: tuple[Callable[[], BlockRunner], ...] = (
    SequentialRunner,
    lambda: LayerParallelRunner(LayerParallelConfig(size=2)),
    lambda: LayerSkipRunner(LayerSkipConfig()),
)


@pytest.fixture
def ttnn(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in, in the place of ttnn and as an installed package."""
    module, version = documented_ttnn(), importlib.metadata.version
    monkeypatch.setitem(sys.modules, "ttnn", module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0" if name == "ttnn" else version(name))
    return module


def test_it_passes_the_conformance_suite(ttnn: ModuleType) -> None:
    """In float32, which a device would not take, so that only the adapter can be wrong."""
    operations = DeviceOperations(torch.float32, 0)
    check_executor(
        lambda source, dtype: TtnnExecutor(load_model(source, operations)),
        runners=RUNNERS,
        seeds=[0],
    )


def test_windows_and_scales_are_those_of_the_layer(ttnn: ModuleType) -> None:
    config = replace(TINY, windows=(5, None, 40, None), attention_scale=0.4, qk_norm=False)
    source, operations = RandomWeights(config, 0), DeviceOperations(torch.float32, 0)
    reference = TorchExecutor(load_decoder(source, torch.device("cpu"), torch.float32), Ops())
    executor = TtnnExecutor(load_model(source, operations))
    for check in (check_chains, check_batches):
        check(SideBySide(executor, reference, SequentialRunner, 1e-4, random.Random(0), check.__name__))


def test_the_backend_takes_the_device_where_ttnn_is_installed(ttnn: ModuleType) -> None:
    backend = TtnnBackend(TtnnConfig())
    assert not backend.simulates and backend.describe() == "Tenstorrent device 0, ttnn 0.0"
    executor = backend.load(RandomWeights(TINY, 0, torch.bfloat16), torch.bfloat16)
    assert isinstance(executor, TtnnExecutor) and isinstance(executor.model.operations, DeviceOperations)
    with pytest.raises(UserError, match="a Tenstorrent device computes attention in bfloat16, not in float32"):
        backend.load(RandomWeights(TINY, 0), torch.float32)


def test_a_device_that_cannot_be_opened_is_one_line(ttnn: ModuleType) -> None:
    with pytest.raises(UserError) as caught:
        TtnnBackend(TtnnConfig(index=1)).load(RandomWeights(TINY, 0), torch.bfloat16)
    assert str(caught.value) == "backend.index: ttnn cannot open device 1: no device 1"


def wrong_adapters() -> list[Any]:
    """Adapters with one fault each, which the suite has to find."""

    class MeanOverPadding(DeviceOperations):
        def rms_norm(self, x_RM: Any, gain_1M: Any, eps: float, size: int, groups: int = 1) -> Any:
            return super().rms_norm(x_RM, gain_1M, eps, x_RM.shape[3] // groups, groups)

    class FirstRowOnly(DeviceOperations):
        def update_cache(self, cache: Any, x_RGE: Any, first: int, columns: Any) -> None:
            super().update_cache(cache, x_RGE, 0, columns)

    class NothingMoves(DeviceOperations):
        def move_in_cache(self, cache: Any, sources: Any, column: int) -> None:
            pass

    return [MeanOverPadding, FirstRowOnly, NothingMoves]


@pytest.mark.parametrize("wrong", wrong_adapters(), ids=lambda wrong: wrong.__name__)
def test_a_wrong_adapter_is_caught(wrong: Callable[[torch.dtype, int], Operations], ttnn: ModuleType) -> None:
    operations = wrong(torch.float32, 0)
    with pytest.raises(AssertionError, match=r"is off by"):
        check_executor(lambda source, dtype: TtnnExecutor(load_model(source, operations)), seeds=[0])
