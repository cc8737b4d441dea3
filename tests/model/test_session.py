"""Trees through a session against recomputing every path from scratch."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.session import Session
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def logits_from_scratch(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """Logits after the last of ``tokens``, computed with no cache and no tree."""
    return Session(decoder, Ops()).score(TokenTree.chain(tokens[0], tokens[1:])).logits_NV[-1]


def random_builder(shape: random.Random, size: int) -> TreeBuilder:
    builder = TreeBuilder(shape.randrange(VOCABULARY))
    while builder.size < size:
        builder.add(shape.randrange(builder.size), shape.randrange(VOCABULARY), "chosen")
    return builder


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), prefix=st.integers(0, 40), size=st.integers(1, 14))
def test_every_node_is_scored_as_if_its_path_were_the_text(seed: int, prefix: int, size: int) -> None:
    decoder, shape = tiny_decoder(), random.Random(seed)
    text = [shape.randrange(VOCABULARY) for _ in range(prefix)]
    tree = random_builder(shape, size).build().tree
    session = Session(decoder, Ops())
    session.prefill(text)
    logits_NV = session.score(tree).logits_NV
    for node in range(tree.size):
        path = [tree.token_N[i] for i in tree.path_to(node)]
        assert (logits_NV[node] - logits_from_scratch(decoder, text + path)).abs().max() < 1e-4
    kept = tree.path_to(shape.randrange(tree.size))
    session.commit(kept)
    follow_up = session.score(TokenTree.root_only(7)).logits_NV[0]
    committed = text + [tree.token_N[i] for i in kept]
    assert session.length == len(committed)
    assert (follow_up - logits_from_scratch(decoder, [*committed, 7])).abs().max() < 1e-4


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 14))
def test_a_growing_tree_is_scored_as_the_closed_one(seed: int, size: int) -> None:
    """Slots in creation order, fed in random portions, give every node the logits of the finished tree."""
    decoder, shape = tiny_decoder(), random.Random(seed)
    text = [shape.randrange(VOCABULARY) for _ in range(9)]
    full = random_builder(shape, size)
    closed = Session(decoder, Ops())
    closed.prefill(text)
    built = full.build()
    expected_NV = closed.score(built.tree).logits_NV

    session = Session(decoder, Ops())
    session.prefill(text)
    assert (session.feed([full.root]) - expected_NV[0]).abs().max() < 1e-4
    growing, logits_NV = TreeBuilder(full.root), [expected_NV[0]]
    while growing.size < full.size:
        new_nodes = shape.randint(1, full.size - growing.size)
        for node in range(growing.size, growing.size + new_nodes):
            growing.add(full.parent[node], full.token[node], "chosen")
        logits_NV.extend(session.grow(growing, new_nodes))
    for slot, position in enumerate(built.preorder):
        assert (logits_NV[slot] - expected_NV[position]).abs().max() < 1e-4


def test_rolling_back_forgets(decoder: Decoder) -> None:
    session = Session(decoder, Ops())
    session.prefill([5, 6, 7, 8, 9, 10])
    session.truncate(3)
    logits_V = session.feed([20, 21])
    assert session.length == 5
    assert (logits_V - logits_from_scratch(decoder, [5, 6, 7, 20, 21])).abs().max() < 1e-4


def test_the_context_is_checked_before_a_pass(decoder: Decoder) -> None:
    session = Session(decoder, Ops())
    context = decoder.config.max_context
    session.prefill([5] * context)
    with pytest.raises(UserError, match=f"context of {context} tokens"):
        session.score(TokenTree.root_only(5))
    assert session.length == context
