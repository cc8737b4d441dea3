"""Fused layer-parallel passes on a GPU: equal to the definition, and captured in a CUDA graph. Skipped without one.

Legend: N nodes, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.ops.attention_mask import AttentionMask
from tests.support.tiny_decoder import ModelTensors

pytest.importorskip("triton")

from spec_sdk_backends.triton_ops import TritonOps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PREFIX, LAYERS = 70, 9
GROUPS = [[0], [1, 2], [3, 4, 5, 6, 7], [8]]


def prepared(decoder: Decoder, nodes: int) -> tuple[torch.Tensor, ForwardPass]:
    """Tokens of N children of the root, and a pass over them behind a prefix of random K and V."""
    device = decoder.device
    cache = decoder.new_cache()
    cache.reserve(PREFIX + nodes)
    cache.k_LBGCD.normal_()
    cache.v_LBGCD.normal_()
    mask = AttentionMask.growing_tree(PREFIX, range(nodes), range(1, nodes + 1), nodes, device)
    cos_N1D, sin_N1D = decoder.rotary.at(torch.full((nodes,), PREFIX, device=device), PREFIX)
    return torch.arange(3, 3 + nodes, device=device)[None], ForwardPass(
        cache, PREFIX, mask, cos_N1D, sin_N1D, TritonOps()
    )


@pytest.mark.parametrize("nodes", [1, 4, 17])
@pytest.mark.parametrize("name", ["smollm", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@torch.inference_mode()
def test_fused_is_the_definition_and_can_be_captured(
    dtype: torch.dtype, tolerance: float, name: str, nodes: int, device: torch.device
) -> None:
    decoder = load_decoder(ModelTensors(name, 0, num_hidden_layers=LAYERS), device, dtype)
    token_BN, work = prepared(decoder, nodes)
    fused = LayerParallelRunner(GROUPS)
    defined_BNV = decoder.forward(token_BN, work, LayerParallelRunner(GROUPS, fused=False)).logits_BNV
    eager_BNV = decoder.forward(token_BN, work, fused).logits_BNV
    assert (eager_BNV - defined_BNV).abs().max() <= tolerance * defined_BNV.abs().max()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decoder.forward(token_BN, work, fused)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_BNV = decoder.forward(token_BN, work, fused).logits_BNV
    token_BN.add_(5)
    graph.replay()
    again_BNV = decoder.forward(token_BN, work, fused).logits_BNV
    assert (captured_BNV - again_BNV).abs().max() <= 1e-3 * again_BNV.abs().max()
    assert (again_BNV - eager_BNV).abs().max() > 1e-2
