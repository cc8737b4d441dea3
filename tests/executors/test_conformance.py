"""The conformance suite of executors: right ones pass it, wrong ones do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_sdk.contracts import BlockRunner
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.testing import check_executor
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.cuda import CudaBackend, CudaConfig
from spec_sdk_drafters.skipped_layers import LayerSkipConfig, LayerSkipRunner
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.conftest import FULL
from tests.executors.numpy_executor import NumpyExecutor, load_numpy
from tests.executors.numpy_runners import AttentionRule, SinkSpeculation
from tests.executors.wrong_executors import WRONG, RunsAnything, WrongExecutor, load


def attention_speculative(space: str = "heads", threshold: float = 0.4) -> AttentionSpeculativeRunner:
    verifier = L2Threshold(L2ThresholdConfig(threshold, never=[1], space=space))
    return AttentionSpeculativeRunner(lambda: AttentionSink(AttentionSinkConfig(3)), verifier)


RUNNERS: tuple[Callable[[], BlockRunner], ...] = (
    SequentialRunner,
    lambda: LayerParallelRunner(LayerParallelConfig(size=2)),
    attention_speculative,
    lambda: LayerSkipRunner(LayerSkipConfig()),
    lambda: attention_speculative("residual"),
)


def load_torch(source: TensorSource, dtype: torch.dtype) -> Executor:
    return TorchExecutor(load_decoder(source, torch.device("cpu"), dtype), Ops())


class Bucketed(TorchExecutor):
    """Pads as an executor would that captures a graph per size."""

    def rows_of(self, rows: int) -> int:
        return 1 << (rows - 1).bit_length()

    def slots_of(self, slots: int) -> int:
        return -(-slots // 16) * 16


@pytest.mark.parametrize(
    "make_executor", [pytest.param(load_torch, marks=pytest.mark.full), CpuBackend(CpuConfig()).load, load_numpy]
)
def test_right_executors_pass(
    make_executor: Callable[[TensorSource, torch.dtype], Executor], scale: Callable[[int, int], int]
) -> None:
    check_executor(make_executor, runners=RUNNERS, seeds=range(scale(1, 20)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_cuda_backend_passes() -> None:
    for fuse in (False, True):
        backend = CudaBackend(CudaConfig(fuse=fuse))
        check_executor(backend.load, tolerances=backend.tolerances, runners=RUNNERS[:2])


def test_the_accelerate_backend_passes_alone() -> None:
    """On a GPU where there is one."""
    backend = AccelerateBackend(AccelerateConfig())
    check_executor(backend.load, tolerances=backend.tolerances, seeds=[0])


def test_an_executor_with_buckets_passes() -> None:
    """With the other runners too in the full tier; plain and grouped ones are run by an executor that captures passes
    (tests/model/test_graph_executor.py), which pads them in the same way.
    """
    check_executor(
        lambda source, dtype: Bucketed(load_decoder(source, torch.device("cpu"), dtype), Ops()),
        runners=RUNNERS if FULL else RUNNERS[2:3],
        seeds=[0],
    )


def test_half_precision_passes_with_its_own_tolerance() -> None:
    check_executor(load_torch, tolerances={torch.bfloat16: 0.1, torch.float16: 0.02}, seeds=[0])
    with pytest.raises(AssertionError, match=r"bfloat16, seed 0.* is off by"):
        check_executor(load_torch, tolerances={torch.bfloat16: 1e-4}, seeds=[0])


def test_predictions_of_both_outcomes_are_compared() -> None:
    """The suite's passes have layers that are taken from a prediction, and layers that are not."""
    hits: list[bool | None] = []

    class Watched(NumpyExecutor):
        def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
            output = super().forward(inputs, cache, plan)
            hits.extend(hit for report in output.reports if report is not None for hit in report.hit)
            return output

    check_executor(
        lambda source, dtype: Watched(load_numpy(source, dtype).model), runners=[attention_speculative], seeds=[0]
    )
    assert min(hits.count(True), hits.count(False), hits.count(None)) > 50


@pytest.mark.parametrize("wrong", WRONG.values(), ids=lambda wrong: wrong.__name__)
def test_a_wrong_executor_is_caught(wrong: type[WrongExecutor]) -> None:
    with pytest.raises(AssertionError) as caught:
        check_executor(load(wrong))
    assert FOUND_BY.get(wrong.__name__, "float32, seed 0, sequential, check_") in str(caught.value)


def test_a_runner_executed_in_another_way_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"layer_parallel, check_chains.* is off by"):
        check_executor(load(RunsAnything), runners=RUNNERS[1:2])


def test_a_wrong_verdict_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionRule, "hit", lambda rule, layer, error_n: True)
    with pytest.raises(AssertionError, match=r"attention_speculative, check_.* predictions accepted"):
        check_executor(load_numpy, runners=[attention_speculative])


def test_a_prediction_from_other_keys_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    one_more = SinkSpeculation._speculate

    def speculate(self: SinkSpeculation, *given: Any) -> Any:
        return one_more(dataclasses.replace(self, size=self.size + 1), *given)

    monkeypatch.setattr(SinkSpeculation, "_speculate", speculate)
    # where nothing is accepted only what was measured shows it
    with pytest.raises(AssertionError, match=r"attention_speculative, check_.* errors of layer"):
        check_executor(load_numpy, runners=[lambda: attention_speculative(threshold=0.0)])


FOUND_BY = {
    "GrowsOtherTrees": "float32, seed 0: level 0 of a tree that grows in one call",
    "RunsAnything": "runner 'unheard_of' was neither run nor refused",
    "BucketsTooSmall": "rows_of(129) is 128, which is less",
    "TapsOfTheLayerBefore": "hidden states of layer 1",
    "LastRowIsPadding": "the last live row's logits",
    "LastRowOfTheFirstRequest": "the last live row's logits",
    "PaddingPushedBack": "check_batches",
    "CommitOverwrites": "check_growing_trees",
    "ClosedTreesOnly": "check_growing_trees",
    "SiblingsVisible": "check_closed_trees",
    "PositionOff": "check_closed_trees",
    "RolledBackIsSeen": "check_roll_backs",
    "CutsFromTheFront": "cut to layers",
    "NoneIsAll": "logits (none) have shape",
}
"""Part of the message, where it says more than that something differed."""
