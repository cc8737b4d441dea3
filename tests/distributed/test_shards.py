"""Which rank holds what: every head, row and layer once."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.shards import ShardedSource, head_rows, shard_of, share
from tests.support.tiny_checkpoints import ARCHITECTURES
from tests.support.tiny_decoder import ModelTensors, tiny_decoder
from tests.support.tiny_ranks import ranks_at

CONFIG = tiny_decoder("smollm").config
ATTENTION_ROWS = ("q", "gated_q", "query_up", "k", "v", "latent_key", "latent_value", "sinks")
MLP_ROWS = ("gate", "up", "expert_gate", "expert_up", "shared_gate", "shared_up")
ROWS = (*ATTENTION_ROWS, *MLP_ROWS, "head")
COLUMNS = ("o", "down", "expert_down", "shared_down")
"""By roles."""
DIVISIBLE = [name for name in ARCHITECTURES if not name.startswith("gemma4")]


@given(st.integers(0, 300), st.integers(1, 40))
def test_shares_are_whole_and_even(total: int, parts: int) -> None:
    ranges = [share(total, parts, part) for part in range(parts)]
    assert [i for first, end in ranges for i in range(first, end)] == list(range(total))
    sizes = [end - first for first, end in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 9), st.integers(1, 8), st.integers(1, 80))
def test_every_query_head_is_held_once_beside_its_kv_head(kv_heads: int, queries_each: int, size: int) -> None:
    heads = kv_heads * queries_each
    config = dataclasses.replace(CONFIG, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=100)
    if size > heads:
        with pytest.raises(UserError, match=f"use at most {heads}"):
            shard_of(config, 0, size)
        return
    shards = [shard_of(config, rank, size) for rank in range(size)]
    assert [h for shard in shards for h in range(*shard.q_heads)] == list(range(heads))
    for shard in shards:
        held, needed = range(*shard.kv_heads), {h // queries_each for h in range(*shard.q_heads)}
        assert needed == set(held)
        # attention takes equally many query heads for every KV head
        assert (shard.q_heads[1] - shard.q_heads[0]) % len(held) == 0


@given(st.integers(1, 50), st.integers(1, 9))
def test_head_rows_are_padded_to_one_length(vocabulary: int, size: int) -> None:
    head_VM = torch.arange(1.0, vocabulary + 1)[:, None]
    rows = [head_rows(head_VM, rank, size) for rank in range(size)]
    assert len({part.shape for part in rows}) == 1
    whole = torch.cat(rows)
    assert torch.equal(whole[:vocabulary], head_VM)
    assert not whole[vocabulary:].any()


def sharded(source: ModelTensors, size: int) -> list[ShardedSource]:
    places = [ranks_at(rank, size) for rank in range(size)]
    return [ShardedSource(source, place, place) for place in places]


@pytest.mark.parametrize("name", DIVISIBLE)
def test_two_shards_make_the_whole(name: str) -> None:
    source = ModelTensors(name, 0)
    first, second = sharded(source, 2)
    # the head's rows are divided also where they are the embedding's
    table = weights_of(dataclasses.replace(source.config, tie_embeddings=False))
    assert first.names() == table.shapes.keys()
    roles = {key: table.entry(key).row.role for key in table.shapes}
    sums = {key for key, role in roles.items() if role in ("o_bias", "down_bias", "expert_down_bias")}
    assert second.names() == first.names() - sums
    for key in table.shapes:
        tied = key == table.name("head") and source.config.tie_embeddings
        whole, role = source.tensor(table.name("embedding") if tied else key), roles[key].removesuffix("_bias")
        if role in ROWS or (role in ("q_norm", "k_norm") and source.config.wide_qk_norm):
            assert torch.equal(torch.cat((first.tensor(key), second.tensor(key))), whole), key
        elif role in COLUMNS and key not in sums:
            assert torch.equal(torch.cat((first.tensor(key), second.tensor(key)), dim=1), whole), key
        else:
            assert torch.equal(first.tensor(key), whole) and torch.equal(second.tensor(key), whole), key


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", DIVISIBLE)
def test_a_shard_is_a_checkpoint_of_its_own_config(name: str, size: int) -> None:
    source = ModelTensors(name, 0)
    for shard in sharded(source, size):
        shapes = weights_of(shard.config).shapes
        assert shard.names() <= shapes.keys()
        for key in shard.names() - {"lm_head.weight"}:
            assert shard.tensor(key).shape == shapes[key], key
        if "lm_head.weight" in shapes:
            rows, columns = shapes["lm_head.weight"]
            assert shard.tensor("lm_head.weight").shape == (-(-rows // size), columns)


@pytest.mark.parametrize("name", ["biased_llama", "sparse_steps"])
def test_layers_of_a_shard_are_a_shard_of_layers(name: str) -> None:
    source, layers = ModelTensors(name, 0), [1, 4]
    for rank in range(2):
        place = ranks_at(rank, 2)
        ours = LayersOf(ShardedSource(source, place, place), layers)
        theirs = ShardedSource(LayersOf(source, layers), place, place)
        assert ours.names() == theirs.names() and ours.config == theirs.config
        assert all(torch.equal(ours.tensor(key), theirs.tensor(key)) for key in ours.names())


def test_layers_with_experts_keep_them() -> None:
    source, layers = ModelTensors("sparse_steps", 0), [0, 1, 3, 4]
    loaded = load_decoder(LayersOf(source, layers), torch.device("cpu"), torch.float32)
    subset = tiny_decoder("sparse_steps", 0).subset(layers)
    assert loaded.config.experts is not None and loaded.config.experts.layers == (1, 2)
    for ours, theirs in zip(loaded.blocks, subset.blocks, strict=True):
        pairs = zip(ours.projections, theirs.projections, strict=True)
        assert all(torch.equal(a.weight_OI, b.weight_OI) for a, b in pairs)


def test_heads_of_different_shapes_are_not_divided() -> None:
    config = ModelTensors("gemma4", 0).config
    assert shard_of(config, 0, 1).q_heads == (0, config.num_heads)
    with pytest.raises(UserError, match="gemma4_text has heads of different shapes, which are not divided .* use one"):
        shard_of(config, 0, 2)


def test_no_more_ranks_than_an_expert_has_rows() -> None:
    config = ModelTensors("qwen2_moe", 0, moe_intermediate_size=3).config
    assert shard_of(config, 2, 3).mlp_rows[1] == config.intermediate_size
    with pytest.raises(UserError, match="4 processes are too many .* use at most 3"):
        shard_of(config, 0, 4)


def test_layers_of_a_nemotron_are_the_subset_of_its_decoder() -> None:
    source, layers = ModelTensors("nemotron_h_moe", 0), [1, 2, 3, 6]
    loaded = load_decoder(LayersOf(source, layers), torch.device("cpu"), torch.float32)
    subset = tiny_decoder("nemotron_h_moe", 0).subset(layers)
    config = loaded.config
    assert (config.without_attention, config.without_mlp) == ((0, 3), (1, 2)) and config.has_attention(2)
    for ours, theirs in zip(loaded.blocks, subset.blocks, strict=True):
        assert (ours.attends, type(ours.mlp), type(ours.mixer)) == (
            theirs.attends,
            type(theirs.mlp),
            type(theirs.mixer),
        )
        parts = [[part for whole in block.projections for part in whole.parts] for block in (ours, theirs)]
        assert all(torch.equal(a.weight_OI, b.weight_OI) for a, b in zip(*parts, strict=True))


def test_layers_of_a_checkpoint_are_the_subset_of_its_decoder() -> None:
    source, layers = ModelTensors("biased_llama", 0), [0, 2, 4]
    loaded = load_decoder(LayersOf(source, layers), torch.device("cpu"), torch.float32)
    subset = tiny_decoder("biased_llama", 0).subset(layers)
    assert loaded.layers == loaded.config.num_layers == subset.layers == 3
    for ours, theirs in zip(loaded.blocks, subset.blocks, strict=True):
        assert torch.equal(ours.qkv.weight_OI, theirs.qkv.weight_OI)
        ours_O, theirs_O = ours.projections[-1].bias_O, theirs.projections[-1].bias_O
        assert ours_O is not None and theirs_O is not None
        assert torch.equal(ours_O, theirs_O)
