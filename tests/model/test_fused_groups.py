"""Fused layer-parallel execution against its definition, layer by layer.

Legend: N tokens, M model dim, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from spec_sdk.model.attention_stack import runs
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.kv_cache import KVCache
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Scores, Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import PLAIN, AttentionSpec, Ops
from spec_sdk.ops.pass_cache import PassCache
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.draft_logits import rows_of
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
    session = Session(TorchExecutor(decoder, Ops()), LayerParallelRunner.of(groups, fused))
    session.prefill(0, TOKENS[:20])
    session.feed([0], [[TOKENS[20]]])
    tree = TreeBuilder(TOKENS[20])
    token, logits = iter(TOKENS[21:]), []
    first, before = 0, 1
    for nodes in levels:
        for i in range(nodes):
            tree.add(first + i % before, next(token), "chosen")
        first, before = tree.size - nodes, nodes
        logits += rows_of(session.grow([0], [tree], [nodes]))
    assert tree.size == 1 + sum(levels)
    return torch.cat(logits), session


def compare(decoder: Decoder, groups: list[list[int]], levels: list[int]) -> None:
    """Logits and all stored K and V."""
    (fused_NV, ours), (defined_NV, theirs) = (grown(decoder, groups, fused, levels) for fused in (True, False))
    assert_equal(fused_NV, defined_NV)
    stored = 21 + sum(levels)
    for one, other in zip(stored_kv(ours, stored), stored_kv(theirs, stored), strict=True):
        assert_equal(one, other)


def stored_kv(session: Session, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    cache = session.cache
    assert isinstance(cache, KVCache)
    return cache.k_LSGCD[:, :, :, :columns], cache.v_LSGCD[:, :, :, :columns]


LLAMAS = ["smollm", "llama2", "biased_llama", "qwen2", "qwen3"]


@pytest.mark.parametrize("levels", [[1, 1, 1], [4, 4], [2, 17], [3, 1, 6]], ids=str)
@pytest.mark.parametrize(
    "name",
    ["smollm", "llama2", "biased_llama", "qwen2", "qwen3", "qwen2_sliding", "qwen2_moe", "gemma3", "exaone4", "olmo2"],
)
def test_fused_is_the_definition(name: str, levels: list[int]) -> None:
    """Chains and trees; GQA and none, biases, QK norm, a head dim of its own, layers of several kinds in a group."""
    compare(deep_decoder(name), UNEVEN, levels)


@pytest.mark.parametrize(
    "kept",
    [[0, 1, 2, 3, 5, 6, 7, 8], [0, 2, 4, 6, 8], [0, 1, 3, 4, 6, 8], [1, 2, 7, 8]],
    ids=str,
)
@pytest.mark.parametrize("name", ["smollm", "qwen2", "qwen3", "gemma2"])
def test_cuts_that_skip_layers(name: str, kept: list[int]) -> None:
    cut = deep_decoder(name).subset(kept)
    last = cut.layers - 1
    compare(cut, [[0], list(range(1, last)), [last]], [1, 4])
    # a cut of a cut
    compare(cut.subset(range(1, cut.layers)), [list(range(cut.layers - 1))], [3])


def test_a_whole_model_as_one_group(smollm: Decoder) -> None:
    compare(smollm, [list(range(DEPTH))], [1, 2, 4])


def test_batches_and_recorded_states(smollm: Decoder) -> None:
    """Two requests in one pass, on prefixes of their own; hidden states of every layer are the definition's."""
    length, new = 12, 3
    prefixes = TOKENS[:length], TOKENS[30 : 30 + length]
    trees = [TokenTree.chain(TOKENS[at], TOKENS[at + 1 : at + new]) for at in (12, 50)]
    everything = range(DEPTH + 1)
    found: list[list[Scores]] = []
    for fused in (True, False):
        session = Session(TorchExecutor(smollm, Ops()), LayerParallelRunner.of(UNEVEN, fused))
        for slot, prefix in enumerate(prefixes):
            session.prefill(slot, prefix)
        found.append(session.score([0, 1], trees, everything))
    for ours, defined in zip(*found, strict=True):
        assert set(ours.hidden) == set(defined.hidden) == set(everything)
        for layer, defined_NM in defined.hidden.items():
            assert defined_NM.shape == (new, smollm.config.hidden_size)
            assert_equal(ours.hidden[layer], defined_NM)


def test_a_group_is_one_call_of_each_kind(smollm: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is called, and K and V are written, once for every group."""
    called: list[int] = []
    written: list[int] = []

    class Counting(Ops):
        def tree_attention(self, q_BNHD, k_BGSD, v_BGSD, mask, spec=PLAIN):  # type: ignore[no-untyped-def]
            called.append(q_BNHD.shape[0])
            return super().tree_attention(q_BNHD, k_BGSD, v_BGSD, mask, spec)

    write = PassCache.write

    def note(self: PassCache, first: int, k: torch.Tensor, v: torch.Tensor) -> None:
        written.append(k.shape[0])
        write(self, first, k, v)

    session = Session(TorchExecutor(smollm, Counting()), LayerParallelRunner.of(UNEVEN))
    session.prefill(0, TOKENS[:5])
    called.clear()
    monkeypatch.setattr(PassCache, "write", note)
    session.score([0], [TokenTree.chain(TOKENS[5], TOKENS[6:8])])
    assert called == [1, 2, 5, 1] and written == [1, 2, 5, 1]


def test_layers_of_different_kinds_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is split where window or rotary positions change: of 9 layers of a Gemma 3, number 5 sees all keys."""
    decoder = deep_decoder("gemma3")
    assert [kind.attention.window for kind in decoder.kinds] == [24] * 5 + [None] + [24] * 3
    called: list[tuple[int, AttentionSpec]] = []

    class Noting(Ops):
        def cached_attention(self, q_gBNHD, cache, first, spec=PLAIN):  # type: ignore[no-untyped-def]
            called.append((q_gBNHD.shape[0], spec))
            return super().cached_attention(q_gBNHD, cache, first, spec)

    session = Session(TorchExecutor(decoder, Noting()), LayerParallelRunner.of(UNEVEN))
    session.prefill(0, TOKENS[:5])
    called.clear()
    session.score([0], [TokenTree.chain(TOKENS[5], TOKENS[6:8])])
    local, everywhere = decoder.kinds[0].attention, decoder.kinds[5].attention
    # layers 0; 1 and 2; 3 and 4 with a window, 5 without, 6 and 7 with one again; 8
    assert called == [(1, local), (2, local), (2, local), (1, everywhere), (2, local), (1, local)]


def test_stacked_weights_are_the_layers_own(smollm: Decoder) -> None:
    """Views into one tensor per kind: nothing is held twice, not by a cut either."""
    cut = smollm.subset([0, 2, 3, 8])
    for decoder in (smollm, cut):
        for layer in range(decoder.layers):
            block, [stack] = decoder.blocks[layer], decoder.stacks(layer, layer + 1)
            assert stack.qkv_projections[0].weight_OI.data_ptr() == block.qkv.weight_OI.data_ptr()
            assert stack.output_projections[0].weight_OI.data_ptr() == block.output.weight_OI.data_ptr()
            assert block.input_norm_M is not None and stack.input_norm_LM is not None
            assert stack.input_norm_LM[0].data_ptr() == block.input_norm_M.data_ptr()
            assert torch.equal(stack.qkv_projections[0].weight_OI, block.qkv.weight_OI)
    assert [stack.depth for stack in cut.stacks(0, 4)] == [1, 2, 1]
    assert runs([0, 2, 3, 8]) == [(0, 1), (2, 4), (8, 9)]


def test_a_decoder_of_separate_blocks_runs_layer_by_layer() -> None:
    whole = tiny_decoder()
    loose = Decoder(whole.config, whole.blocks, whole.embedding, whole.final_norm_M, whole.output_head)
    groups = [[0], [1, 2, 3], [4]]
    chain = TokenTree.chain(TOKENS[0], TOKENS[1:])
    (ours,), (theirs,) = (
        Session(TorchExecutor(decoder, Ops()), LayerParallelRunner.of(groups, fused)).score([0], [chain])
        for decoder, fused in ((loose, True), (whole, False))
    )
    assert torch.equal(ours.logits_NV, theirs.logits_NV)
    with pytest.raises(ValueError, match="not loaded into stacked weights"):
        loose.stacks(0, 2)
