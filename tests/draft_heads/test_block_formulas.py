"""Heads that draft a block compute what the published formulas say, several cycles deep, in every variant."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.model.draft_heads.block_head import BlockHead
from spec_sdk.model.draft_heads.block_session import BlockSession
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters.level_tree import LevelTree
from spec_sdk_drafters.markov_levels import grow_levels
from spec_sdk_samplers.reference import ReferenceSampler
from tests.draft_heads.plain_block import PlainBlock
from tests.draft_heads.plain_formulas import frequencies
from tests.draft_heads.test_formulas import LLAMA3, Text, end_tensors
from tests.support.tiny_blocks import (
    MASK,
    BlockSizes,
    block_tensors,
    deepspec_config,
    load_block,
    speculators_block_config,
    zlab_config,
)
from tests.support.tiny_heads import random_ends, write_head

SIZES = BlockSizes()
DSPARK = replace(SIZES, rank=6, confidence=True)
ROUNDING = 1e-9
SMALL = 1e-5
"""Of paths less probable than that nothing is compared."""
SLIDING = ["sliding_attention", "full_attention"]
ZLAB: dict[str, tuple[BlockSizes, dict[str, Any]]] = {
    "original": (SIZES, {}),
    "one layer": (replace(SIZES, layers=1), {}),
    "some of the vocabulary": (replace(SIZES, W=40), {}),
    "narrower than its target": (replace(SIZES, M=32, S=48, head_dim=8), {}),
    "heads that are not M / H wide": (replace(SIZES, head_dim=16), {}),
    "biases": (SIZES, {"attention_bias": True}),
    "linear positions": (SIZES, {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5}),
    "Llama 3's positions": (SIZES, {"rope_scaling": LLAMA3}),
    "a window": (SIZES, {"layer_types": SLIDING, "sliding_window": 6}),
    "a window and later rows": (SIZES, {"layer_types": SLIDING, "sliding_window": 6, "is_causal": False}),
    "no later rows": (SIZES, {"dflash_config": {"causal": True}}),
    "scaled": (
        replace(SIZES, W=40),
        {"dflash_config": {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 1.5}},
    ),
    "from the anchor": (SIZES, {"dflash_config": {"sample_from_anchor": True}}),
    "a mask embedding": (SIZES, {}),
}
DEEPSPEC: dict[str, tuple[BlockSizes, dict[str, Any]]] = {
    "no Markov head": (replace(DSPARK, rank=0), {}),
    "vanilla": (DSPARK, {}),
    "gated": (replace(DSPARK, markov="gated"), {}),
    "rnn": (replace(DSPARK, markov="rnn"), {}),
    "some of the vocabulary": (replace(DSPARK, W=40), {}),
    "rnn not from the anchor": (replace(DSPARK, markov="rnn"), {"sample_from_anchor": False}),
}
HEADS = {
    **{f"DFlash, {name}": (zlab_config, *case) for name, case in ZLAB.items()},
    **{f"DSpark, {name}": (deepspec_config, *case) for name, case in DEEPSPEC.items()},
}


def written(name: str, directory: Path) -> tuple[BlockSizes, PlainBlock]:
    """The head in a directory, and the same in plain formulas."""
    make_config, sizes, options = HEADS[name]
    config = make_config(sizes, **options)
    tensors = block_tensors(sizes, seed=3, biases=bool(options.get("attention_bias")))
    if name.endswith("mask embedding"):
        tensors["mask_embedding"] = torch.randn(sizes.M, generator=torch.Generator().manual_seed(5))
    if sizes.rank:
        # what follows a token depends on it more than on anything else, and is sure enough for trees to be deep
        tensors["confidence_head.proj.bias"] += 3
        tensors["markov_head.markov_w2.weight"] *= 8 if sizes.markov == "rnn" else 4
    write_head(directory, config, tensors)
    nested = config.get("dflash_config", {})
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    said = config.get("is_causal", nested.get("causal"))
    return sizes, PlainBlock(
        config,
        tensors,
        end_tensors(random_ends(sizes)),
        block=sizes.block,
        mask=MASK,
        from_anchor=config.get("sample_from_anchor", nested.get("sample_from_anchor", make_config is deepspec_config)),
        causal=slides if said is None else [said] * sizes.layers,
        windows=[config["sliding_window"] if slide else None for slide in slides],
        input_factor=nested.get("input_embedding_scale", 1.0),
        logit_factor=nested.get("output_multiplier", 1.0),
        cap=nested.get("final_logit_softcapping"),
    )


def use_angles_of(plain: PlainBlock, head: BlockHead) -> None:
    """Angles in float64: the package's are in float32."""
    expected = frequencies(plain.config)
    for table in head._rotary:
        torch.testing.assert_close(table._frequency, expected.float(), atol=1e-7, rtol=1e-6)
        table._frequency = expected


class Context(Text):
    """A text whose states are fed without the tokens after them."""

    def unfed(self) -> tuple[list[int], dict[int, torch.Tensor]]:
        first, self.fed = self.fed, len(self.tokens) - 1
        return self.tokens[first:-1], self.hidden(first, self.fed)


@pytest.mark.parametrize("name", HEADS)
def test_blocks_of_a_batch_over_several_cycles(name: str, tmp_path: Path) -> None:
    """All paths of some random tokens, behind contexts that were fed in parts."""
    sizes, plain = written(name, tmp_path)
    session = BlockSession(load_block(tmp_path, random_ends(sizes)))
    head = session.head
    use_angles_of(plain, head)
    assert head.taps == (1, 4, 7) and head.form.drafts == sizes.block - (not plain.from_anchor)
    texts = [Context(sizes, seed) for seed in range(3)]
    texts[2].tokens += [texts[2].token() for _ in range(12)]
    session.feed_features([2], [texts[2].tokens[:7]], [head.features(texts[2].hidden(0, 7))])
    texts[2].fed = 7
    first = 0 if plain.from_anchor else 1
    for _ in range(3):
        pairs = [text.unfed() for text in texts]
        features = [head.features(hidden) for _, hidden in pairs]
        session.feed_features(range(3), [tokens for tokens, _ in pairs], features)
        normed_RBM = session.blocks(range(3), [text.tokens[-1] for text in texts])
        for text, normed_BM in zip(texts, normed_RBM, strict=True):
            states = [text.hidden(0, len(text.tokens) - 1)[tap] for tap in head.taps]
            returned = plain.returned(text.tokens, states)
            torch.testing.assert_close(normed_BM, returned, atol=ROUNDING, rtol=ROUNDING)
            drafted = [text.token() for _ in range(head.form.drafts - 1)]
            known, state_1R = [text.tokens[-1], *drafted], torch.empty(0)
            if head.markov is not None:
                state_1R = head.markov.start(1)
                if first:
                    _, state_1R = head.markov.step(state_1R, torch.tensor(known[:1]), normed_BM[:1])
            for depth, token in enumerate(known):
                row_1M, token_1 = normed_BM[first + depth][None], torch.tensor([token])
                logits_1V = head.block_logits(row_1M)
                if head.markov is not None:
                    bias_1V, state_1R = head.markov.step(state_1R, token_1, row_1M)
                    logits_1V = logits_1V + bias_1V
                expected_V = plain.after_known(returned, known[: depth + 1])
                torch.testing.assert_close(logits_1V[0], expected_V, atol=ROUNDING, rtol=ROUNDING)
                if head.confidence is not None:
                    previous_1R = None if head.markov is None else head.markov.previous(token_1)
                    sure = plain.confidence(returned, token, first + depth).float()
                    torch.testing.assert_close(head.confidence(row_1M, previous_1R)[0], sure)
            text.tokens += [*drafted[: text.choose.randrange(len(drafted) + 1)], text.token()]


def test_the_comparison_tells_variants_apart(tmp_path: Path) -> None:
    """What the variants differ in changes the logits, so that nothing is passed over in both."""
    _, plain = written("DFlash, a window", tmp_path)
    tokens = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    states = [torch.randn(8, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    found = plain.after_path(tokens, states, [1, 2])
    changes: list[dict[str, Any]] = [
        {"causal": [False, False]},
        {"causal": [True, True]},
        {"windows": [None, None]},
        {"mask": MASK + 1},
        {"from_anchor": True},
        {"block": 4},
    ]
    for change in changes:
        other = written("DFlash, a window", tmp_path)[1]
        for key, value in change.items():
            setattr(other, key, value)
        assert (other.after_path(tokens, states, [1, 2]) - found).abs().max() > 1e-2, change
    # positions begin at 0, and the path is no input
    assert (plain.after_path(tokens[1:], [state[1:] for state in states], [1, 2]) - found).abs().max() > 1e-2
    assert torch.equal(plain.after_path(tokens, states, [3, 4]), found)


def one_more(plain: PlainBlock, returned: torch.Tensor, known: list[int], token: int) -> float:
    """How probable it is that ``token`` is right behind ``known``, the anchor first."""
    sure = plain.confidence(returned, known[-1], len(known) - (1 if plain.from_anchor else 0))
    return float(sure * plain.after_known(returned, known).softmax(-1)[token])


def best_paths(
    plain: PlainBlock, returned: torch.Tensor, known: list[int], joint: float, depth: int, count: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Probabilities and paths of all that can be among the ``count`` best behind ``known``, the anchor first."""
    slot = len(known) - (1 if plain.from_anchor else 0)
    sure = float(plain.confidence(returned, known[-1], slot))
    top = plain.after_known(returned, known).softmax(-1).topk(count)
    found = []
    for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        found.append((joint * sure * p, (*known[1:], token)))
        if len(known) < depth and joint * sure * p > SMALL:
            found += best_paths(plain, returned, [*known, token], joint * sure * p, depth, count)
    return found


@pytest.mark.parametrize("name", [name for name in HEADS if name.startswith("DSpark") and "no Markov" not in name])
def test_trees_have_the_probabilities_of_their_paths(name: str, tmp_path: Path) -> None:
    """Every node's is the product of the corrected probabilities and the confidences on its path; none better is
    left out. Two trees at once, of different depths.
    """
    sizes, plain = written(name, tmp_path)
    session = BlockSession(load_block(tmp_path, random_ends(sizes)))
    head = session.head
    use_angles_of(plain, head)
    texts = [Context(sizes, seed) for seed in range(2)]
    pairs = [text.unfed() for text in texts]
    session.feed_features(range(2), [tokens for tokens, _ in pairs], [head.features(hidden) for _, hidden in pairs])
    normed_RBM = session.blocks(range(2), [text.tokens[-1] for text in texts])
    sampler = ReferenceSampler(None, SamplingParams())
    requests = [request_for(text.tokens, sampler, 0).view for text in texts]
    first = 0 if plain.from_anchor else 1
    nodes, depths = 20, (3, 2)
    trees = [LevelTree(text.tokens[-1], Budget(d, nodes), 99, 0.0) for text, d in zip(texts, depths, strict=True)]
    grow_levels(head, requests, trees, normed_RBM, normed_RBM[:, first : first + 3], 99)
    for text, tree, depth in zip(texts, trees, depths, strict=True):
        states = [text.hidden(0, len(text.tokens) - 1)[tap] for tap in head.taps]
        returned = plain.returned(text.tokens, states)
        found = best_paths(plain, returned, [text.tokens[-1]], 1.0, depth, nodes)
        expected = {path: p for p, path in sorted(found, reverse=True)[: nodes - 1]}
        assert min(expected.values()) > SMALL
        built = tree.build("test")
        assert max(built.depth) == depth
        paths: list[tuple[int, ...]] = [()]
        for parent, token in zip(built.parent[1:], built.token[1:], strict=True):
            paths.append((*paths[parent], token))
        assert set(paths[1:]) == set(expected)
        by_number = sorted((node.joint for node in tree._nodes[1:]), reverse=True)[: nodes - 1]
        torch.testing.assert_close(by_number, sorted(expected.values(), reverse=True), atol=1e-6, rtol=1e-5)
    # where all nodes are opened, so that every path of three has a state of its own
    text, bushy = texts[0], LevelTree(texts[0].tokens[-1], Budget(3, 200), 9, 0.0)
    grow_levels(head, requests[:1], [bushy], normed_RBM[:1], normed_RBM[:1, first : first + 3], 3)
    states = [text.hidden(0, len(text.tokens) - 1)[tap] for tap in head.taps]
    returned, deepest = plain.returned(text.tokens, states), range(13, 40)
    assert len(bushy._nodes) == 40
    for number in deepest:
        known = [text.tokens[-1], *bushy._path(number)]
        joint = math.prod(one_more(plain, returned, known[:end], known[end]) for end in range(1, 4))
        assert bushy._nodes[number].joint == pytest.approx(joint, rel=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_speculators_write_the_same_head(kind: str, tmp_path: Path) -> None:
    sizes = replace(SIZES, W=40) if kind == "dflash" else replace(DSPARK, W=40, markov="gated")
    config = zlab_config(sizes) if kind == "dflash" else deepspec_config(sizes)
    found = []
    for name, written_config in (("plain", config), (kind, speculators_block_config(sizes, kind))):
        if name == "dspark":
            # the library's own default
            assert "sample_from_anchor" not in written_config
        directory = write_head(tmp_path / name, written_config, block_tensors(sizes, seed=3))
        session = BlockSession(load_block(directory, random_ends(sizes)))
        text = Context(sizes, 4)
        tokens, hidden = text.unfed()
        session.feed_features([0], [tokens], [session.head.features(hidden)])
        found.append((session.head.form, session.head.block_logits(session.blocks([0], [7]))))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
