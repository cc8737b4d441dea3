"""Which rank holds what: every head, row and layer once."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.model.decoder import load_decoder
from spec_sdk.model.tensor_parallel import LayersOf, head_rows, shard_of, share
from tests.support.tiny_decoder import ModelTensors, tiny_decoder

CONFIG = tiny_decoder("smollm").config


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


def test_layers_of_a_checkpoint_are_the_subset_of_its_decoder() -> None:
    source, layers = ModelTensors("biased_llama", 0), [0, 2, 4]
    loaded = load_decoder(LayersOf(source, layers), torch.device("cpu"), torch.float32)
    subset = tiny_decoder("biased_llama", 0).subset(layers)
    assert loaded.layers == loaded.config.num_layers == subset.layers == 3
    for ours, theirs in zip(loaded.blocks, subset.blocks, strict=True):
        assert torch.equal(ours.qkv.weight_OI, theirs.qkv.weight_OI)
        assert ours.down.bias_O is not None and theirs.down.bias_O is not None
        assert torch.equal(ours.down.bias_O, theirs.down.bias_O)
