"""Fused layer-parallel passes on a GPU: equal to the definition, and captured in a CUDA graph. Skipped without one.

Legend: N nodes, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import PassInputs
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.executor import PassPlan
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops.pass_inputs import RequestRows
from tests.support.tiny_decoder import ModelTensors

pytest.importorskip("triton")

from spec_sdk_backends.triton_ops import TritonOps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PREFIX, LAYERS = 70, 9
GROUPS = [[0], [1, 2], [3, 4, 5, 6, 7], [8]]


def prepared(decoder: Decoder, nodes: int) -> tuple[TorchExecutor, KVCache, PassInputs]:
    """A pass of N children of the root, behind a prefix of random K and V."""
    cache = decoder.new_cache()
    cache.reserve(1, PREFIX + nodes)
    cache.k_LSGCD.normal_()
    cache.v_LSGCD.normal_()
    start, end, position = range(nodes), range(1, nodes + 1), [PREFIX] * nodes
    request = RequestRows(0, PREFIX, PREFIX, range(3, 3 + nodes), position, start, start, end, position)
    return TorchExecutor(decoder, TritonOps()), cache, PassInputs.of("growing", [request], decoder.device)


@pytest.mark.parametrize("nodes", [1, 4, 17])
@pytest.mark.parametrize("name", ["smollm", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@torch.inference_mode()
def test_fused_is_the_definition_and_can_be_captured(
    dtype: torch.dtype, tolerance: float, name: str, nodes: int, device: torch.device
) -> None:
    decoder = load_decoder(ModelTensors(name, 0, num_hidden_layers=LAYERS), device, dtype)
    executor, cache, inputs = prepared(decoder, nodes)
    fused = PassPlan(LayerParallelRunner.of(GROUPS))
    defined_BNV = executor.forward(inputs, cache, PassPlan(LayerParallelRunner.of(GROUPS, fused=False))).logits_BNV
    eager_BNV = executor.forward(inputs, cache, fused).logits_BNV
    assert (eager_BNV - defined_BNV).abs().max() <= tolerance * defined_BNV.abs().max()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        executor.forward(inputs, cache, fused)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_BNV = executor.forward(inputs, cache, fused).logits_BNV
    inputs.token_BN.add_(5)
    graph.replay()
    again_BNV = executor.forward(inputs, cache, fused).logits_BNV
    assert (captured_BNV - again_BNV).abs().max() <= 1e-3 * again_BNV.abs().max()
    assert (again_BNV - eager_BNV).abs().max() > 1e-2
