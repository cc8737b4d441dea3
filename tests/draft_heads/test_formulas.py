"""Heads compute what their papers' formulas say, in chains and trees, over several rounds, in every variant."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.tree import TreeBuilder
from tests.draft_heads.plain_formulas import PlainEagle1, PlainEagle3, PlainHead, frequencies
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_heads import (
    HeadSizes,
    _Random,
    eagle1_tensors,
    eagle3_tensors,
    load_head,
    random_ends,
    write_head,
)

SIZES = HeadSizes()
ROUNDING = 1e-9
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EAGLE3: dict[str, tuple[HeadSizes, dict[str, Any]]] = {
    "original": (SIZES, {}),
    "whole vocabulary": (replace(SIZES, W=96), {}),
    "narrower than its target": (replace(SIZES, M=32, S=48, heads=4, head_dim=8), {}),
    "heads that are not M / H wide": (replace(SIZES, head_dim=16), {}),
    "norm before residual": (SIZES, {"norm_before_residual": True}),
    "norm before fc": (SIZES, {"norm_before_fc": True}),
    "a norm per state": (SIZES, {"fc_norm": True}),
    "norm of the output": (SIZES, {"norm_output": True}),
    "scaled logits": (SIZES, {"logit_scale": 0.3}),
    "five states": (replace(SIZES, taps=5), {"eagle_aux_hidden_state_layer_ids": [1, 9, 0, 4, 10]}),
    "linear positions": (SIZES, {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}),
    "Llama 3's positions": (SIZES, {"rope_scaling": LLAMA3}),
    "biases and norms of Q and K": (SIZES, {"attention_bias": True}),
}
EAGLE1: dict[str, tuple[bool, dict[str, Any]]] = {
    "with a bias": (True, {}),
    "without": (False, {"bias": False}),
    "linear positions": (False, {"bias": False, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
}


def eagle3(name: str, directory: Path) -> tuple[HeadSizes, PlainHead]:
    sizes, options = EAGLE3[name]
    tensors, more = eagle3_tensors(sizes, seed=3), _Random(11)
    if options.get("norm_before_fc"):
        tensors["input_norm.weight"] = more.gain(sizes.taps * sizes.S)
    if options.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": more.gain(sizes.S) for i in range(sizes.taps)}
    if options.get("attention_bias"):
        p, D = "midlayer.self_attn", sizes.head_dim
        tensors |= {f"{p}.{part}_proj.bias": more.bias(len(tensors[f"{p}.{part}_proj.weight"])) for part in "qkvo"}
        tensors |= {f"{p}.{part}_norm.weight": more.gain(D) for part in "qk"}
    config = sizes.config(draft_vocab_size=sizes.W, target_hidden_size=sizes.S, **options)
    write_head(directory, config, tensors)
    ends = random_ends(sizes)
    return sizes, PlainEagle3(config, tensors, *end_tensors(ends), prefix="midlayer")


def eagle1(name: str, directory: Path) -> tuple[HeadSizes, PlainHead]:
    bias, options = EAGLE1[name]
    tensors, config = eagle1_tensors(SIZES, seed=3, bias=bias), SIZES.config(**options)
    write_head(directory, config, tensors)
    return SIZES, PlainEagle1(config, tensors, *end_tensors(random_ends(SIZES)), prefix="layers.0")


def end_tensors(ends: TargetEnds) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return ends.embedding.weight_VM, ends.output_head.weight_OI, ends.final_norm_M


HEADS = {
    **{f"EAGLE-3, {name}": (eagle3, name) for name in EAGLE3},
    **{f"EAGLE-1, {name}": (eagle1, name) for name in EAGLE1},
}


class Text:
    """A request's tokens, and the target's states at all of them."""

    def __init__(self, sizes: HeadSizes, seed: int) -> None:
        self.choose, self.sizes = random.Random(seed), sizes
        self.states = torch.randn(11, 64, sizes.S, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        self.tokens = [self.token() for _ in range(self.choose.randint(2, 9))]
        self.fed = 0

    def token(self) -> int:
        return self.choose.randrange(self.sizes.V)

    def hidden(self, first: int, end: int) -> dict[int, torch.Tensor]:
        return {layer: self.states[layer, first:end] for layer in range(11)}

    def unfed(self) -> tuple[list[int], dict[int, torch.Tensor]]:
        """The pairs that the head has not seen."""
        first, self.fed = self.fed, len(self.tokens) - 1
        return self.tokens[first + 1 :], self.hidden(first, self.fed)

    def level(self, tree: TreeBuilder) -> int:
        """Add one to four children at nodes of the deepest level."""
        deepest = [node for node in range(tree.size) if tree.depth[node] == max(tree.depth)]
        before = tree.size
        for _ in range(self.choose.randint(1, 4)):
            tree.add(self.choose.choice(deepest), self.token(), "chosen")
        return tree.size - before


@pytest.mark.parametrize("name", HEADS)
def test_trees_of_a_batch_over_several_rounds(name: str, tmp_path: Path) -> None:
    make, variant = HEADS[name]
    sizes, plain = make(variant, tmp_path)
    session = DraftHeadSession(load_head(tmp_path, random_ends(sizes)))
    use_angles_of(plain, session.head)
    taps, texts = session.head.taps, [Text(sizes, seed) for seed in range(3)]
    # a prompt may be fed in parts
    texts[2].tokens += [texts[2].token() for _ in range(12)]
    session.feed_features([2], [texts[2].tokens[1:8]], [session.head.features(texts[2].hidden(0, 7))])
    texts[2].fed = 7
    for _ in range(2):
        pairs = [text.unfed() for text in texts]
        features = [session.head.features(hidden) for _, hidden in pairs]
        roots = roots_of(session.feed_pairs(range(3), [tokens for tokens, _ in pairs], features))
        trees = [TreeBuilder(text.tokens[-1]) for text in texts]
        logits = [[root_V] for root_V in roots]
        for _ in range(3):
            new = [text.level(tree) for text, tree in zip(texts, trees, strict=True)]
            for slot, level in enumerate(rows_of(session.grow(range(3), trees, new))):
                logits[slot] += level.unbind()
        for text, tree, of_nodes in zip(texts, trees, logits, strict=True):
            hidden = text.hidden(0, len(text.tokens) - 1)
            for node in range(tree.size):
                expected_V = plain.after_path(text.tokens, [hidden[tap] for tap in taps], path_of(tree, node))
                torch.testing.assert_close(of_nodes[node], expected_V, atol=ROUNDING, rtol=ROUNDING)
            # some path is accepted, and a token follows it
            text.tokens += [*path_of(tree, text.choose.randrange(tree.size)), text.token()]


def use_angles_of(plain: PlainHead, head: DraftHead) -> None:
    """Angles in float64: the package's are in float32, and what they round away grows from level to level."""
    (table,), expected = head._rotary, frequencies(plain.config)
    torch.testing.assert_close(table._frequency, expected.float(), atol=1e-7, rtol=1e-6)
    table._frequency = expected


def path_of(tree: TreeBuilder, node: int) -> list[int]:
    path = []
    while node:
        path.append(tree.token[node])
        node = tree.parent[node]
    return path[::-1]


def test_the_comparison_tells_variants_apart(tmp_path: Path) -> None:
    """Every option changes the logits, so that none is passed over in both."""
    sizes, hidden = SIZES, torch.randn(11, 6, 48, dtype=torch.float64)
    tokens = [5, 6, 7, 8, 9, 10, 11]
    _, plain = eagle3("original", tmp_path)
    taps = load_head(tmp_path, random_ends(sizes)).head.taps
    assert taps == (2, 5, 7)
    states = [hidden[tap] for tap in taps]
    found = plain.after_path(tokens, states, [1, 2])
    known = found > -torch.inf
    for key, value in (("norm_before_residual", True), ("norm_output", True), ("logit_scale", 0.3)):
        other = PlainEagle3({**plain.config, key: value}, plain.w, *end_tensors(random_ends(sizes)), prefix="midlayer")
        assert (other.after_path(tokens, states, [1, 2]) - found)[known].abs().max() > 1e-2
    # the draft's own positions begin at 0 with the second token
    assert (plain.after_path(tokens[1:], [s[1:] for s in states], [1, 2]) - found)[known].abs().max() > 1e-2
