"""Fused layer-parallel execution against its definition, layer by layer.

Legend: B batch, N tokens, M model dim, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.attention_stack import runs
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.ops.attention_mask import AttentionMask
from spec_sdk.tree import TreeBuilder
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

DEPTH = 9
# distinct, so that no two children of a node are one
TOKENS = (torch.randperm(VOCABULARY - 3, generator=torch.Generator().manual_seed(5)) + 3).tolist()
UNEVEN = [[0], [1, 2], [3, 4, 5, 6, 7], [8]]


def deep_decoder(name: str) -> Decoder:
    return load_decoder(ModelTensors(name, 0, num_hidden_layers=DEPTH), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def smollm() -> Decoder:
    return deep_decoder("smollm")


def assert_equal(fused: torch.Tensor, defined: torch.Tensor) -> None:
    """Within 1e-5 of the largest value."""
    assert (fused - defined).abs().max() <= 1e-5 * defined.abs().max()


def grown(decoder: Decoder, groups: list[list[int]], fused: bool, levels: list[int]) -> tuple[torch.Tensor, Session]:
    """Logits of all nodes of a growing tree whose levels have so many nodes, and the session with their K and V."""
    session = Session(decoder, Ops())
    session.prefill(TOKENS[:20])
    session.feed([TOKENS[20]])
    runner, tree = LayerParallelRunner(groups, fused), TreeBuilder(TOKENS[20])
    token, logits = iter(TOKENS[21:]), []
    first, before = 0, 1
    for nodes in levels:
        for i in range(nodes):
            tree.add(first + i % before, next(token), "chosen")
        first, before = tree.size - nodes, nodes
        logits.append(session.grow(tree, nodes, runner))
    assert tree.size == 1 + sum(levels)
    return torch.cat(logits), session


def compare(decoder: Decoder, groups: list[list[int]], levels: list[int]) -> None:
    """Logits and all stored K and V."""
    (fused_NV, ours), (defined_NV, theirs) = (grown(decoder, groups, fused, levels) for fused in (True, False))
    assert_equal(fused_NV, defined_NV)
    stored = 21 + sum(levels)
    assert_equal(ours.cache.k_LBGCD[:, :, :, :stored], theirs.cache.k_LBGCD[:, :, :, :stored])
    assert_equal(ours.cache.v_LBGCD[:, :, :, :stored], theirs.cache.v_LBGCD[:, :, :, :stored])


@pytest.mark.parametrize("levels", [[1, 1, 1], [4, 4], [2, 17], [3, 1, 6]], ids=str)
@pytest.mark.parametrize("name", ["smollm", "llama2", "biased_llama", "qwen2", "qwen3"])
def test_fused_is_the_definition(name: str, levels: list[int]) -> None:
    """Chains and trees; GQA and none, QKV and output biases, QK norm, a head dim of its own."""
    compare(deep_decoder(name), UNEVEN, levels)


@pytest.mark.parametrize(
    "kept",
    [[0, 1, 2, 3, 5, 6, 7, 8], [0, 2, 4, 6, 8], [0, 1, 3, 4, 6, 8], [1, 2, 7, 8]],
    ids=str,
)
@pytest.mark.parametrize("name", ["smollm", "qwen2", "qwen3"])
def test_cuts_that_skip_layers(name: str, kept: list[int]) -> None:
    cut = deep_decoder(name).subset(kept)
    last = cut.layers - 1
    compare(cut, [[0], list(range(1, last)), [last]], [1, 4])
    # a cut of a cut
    compare(cut.subset(range(1, cut.layers)), [list(range(cut.layers - 1))], [3])


def test_a_whole_model_as_one_group(smollm: Decoder) -> None:
    compare(smollm, [list(range(DEPTH))], [1, 2, 4])


def test_batches_and_recorded_states(smollm: Decoder) -> None:
    """Two sequences in one pass, on a prefix of their own; hidden states of every layer are those of the definition."""
    config, length, new = smollm.config, 12, 3
    prefix_BN = torch.tensor([TOKENS[:length], TOKENS[30 : 30 + length]])
    token_BN = torch.tensor([TOKENS[12 : 12 + new], TOKENS[50 : 50 + new]])
    hidden: list[dict[int, torch.Tensor]] = []
    for fused in (True, False):
        cache = KVCache(DEPTH, config.num_kv_heads, config.head_dim, smollm.device, smollm.dtype, batch=2)
        cache.reserve(length + new)
        runner = LayerParallelRunner(UNEVEN, fused)
        with torch.no_grad():
            for tokens, at in ((prefix_BN, 0), (token_BN, length)):
                count = tokens.shape[1]
                cos_N1D, sin_N1D = smollm.rotary.at(torch.arange(at, at + count), at + count)
                mask = AttentionMask.chain(at, count, smollm.device)
                everything = frozenset(range(DEPTH + 1))
                work = ForwardPass(cache, at, mask, cos_N1D, sin_N1D, Ops(), everything)
                smollm.forward(tokens, work, runner)
        hidden.append(work.hidden)
    assert set(hidden[0]) == set(hidden[1]) == set(range(DEPTH + 1))
    for layer, defined_BNM in hidden[1].items():
        assert defined_BNM.shape[:2] == (2, new)
        assert_equal(hidden[0][layer], defined_BNM)


def test_a_group_is_one_call_of_each_kind(smollm: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is called, and K and V are written, once for every group."""
    called: list[int] = []
    written: list[int] = []

    class Counting(Ops):
        def tree_attention(self, q_BNHD, k_BGSD, v_BGSD, mask):  # type: ignore[no-untyped-def]
            called.append(q_BNHD.shape[0])
            return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask)

    write = KVCache.write_layers

    def write_layers(self: KVCache, first: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
        written.append(k.shape[0])
        write(self, first, at, k, v)

    session = Session(smollm, Counting())
    session.prefill(TOKENS[:5])
    called.clear()
    monkeypatch.setattr(KVCache, "write_layers", write_layers)
    session.feed(TOKENS[5:8], LayerParallelRunner(UNEVEN))
    assert called == [1, 2, 5, 1] and written == [2, 5]


def test_stacked_weights_are_the_layers_own(smollm: Decoder) -> None:
    """Views into one tensor per kind: nothing is held twice, not by a cut either."""
    cut = smollm.subset([0, 2, 3, 8])
    for decoder in (smollm, cut):
        for layer in range(decoder.layers):
            block, [stack] = decoder.blocks[layer], decoder.stacks(layer, layer + 1)
            assert stack.qkv_projections[0].weight_OI.data_ptr() == block.qkv.weight_OI.data_ptr()
            assert stack.output_projections[0].weight_OI.data_ptr() == block.output.weight_OI.data_ptr()
            assert stack.input_norm_LM[0].data_ptr() == block.input_norm_M.data_ptr()
            assert torch.equal(stack.qkv_projections[0].weight_OI, block.qkv.weight_OI)
    assert [stack.depth for stack in cut.stacks(0, 4)] == [1, 2, 1]
    assert runs([0, 2, 3, 8]) == [(0, 1), (2, 4), (8, 9)]


def test_a_decoder_of_separate_blocks_runs_layer_by_layer() -> None:
    whole = tiny_decoder()
    loose = Decoder(whole.config, whole.blocks, whole.embedding_VM, whole.final_norm_M, whole.output_head)
    groups = [[0], [1, 2, 3], [4]]
    assert torch.equal(
        Session(loose, Ops()).feed(TOKENS, LayerParallelRunner(groups)),
        Session(whole, Ops()).feed(TOKENS, LayerParallelRunner(groups, fused=False)),
    )
    with pytest.raises(ValueError, match="not loaded into stacked weights"):
        loose.stacks(0, 2)
