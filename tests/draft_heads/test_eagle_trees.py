"""What the drafter ``eagle`` proposes, cycle after cycle, beside EAGLE's formulas of the same text in float64.

The formulas are written down apart from the package, and compute the whole text anew for every node: which state is
paired with which token, what a node is fed, and what its children's probabilities are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.tree import TokenTree
from tests.draft_heads.plain_formulas import PlainEagle1, PlainEagle3, PlainHead
from tests.draft_heads.test_drafter import MODELS, SIZES, Served, drafter_of, target_session
from tests.draft_heads.test_formulas import end_tensors
from tests.support.tiny_heads import eagle1_tensors, eagle3_tensors, write_eagle1, write_eagle3

EXECUTOR: Any = MODELS.target.executor
TARGET_ENDS = end_tensors(TargetEnds.of("tiny", EXECUTOR.decoder))
TEXT = [4, 8, 15, 16, 23]
CYCLES = 5
DEPTH = 4
WIDTH = 3
MAX_NODES = 10
ROUNDING = 5e-4
"""Of the head in float32, as a share of a probability that is not small; processors differ in how they add up."""
TokenPath = tuple[int, ...]


def eagle1(directory: Path) -> tuple[Path, PlainHead, list[int]]:
    """The last layer's states, behind the target's final norm. (Of EAGLE-2 too, whose heads are EAGLE-1's.)"""
    plain = PlainEagle1(
        SIZES.config(), eagle1_tensors(SIZES), *TARGET_ENDS, "layers.0", EXECUTOR.decoder.config.rms_norm_eps
    )
    return write_eagle1(directory, SIZES), plain, [5]


def eagle3(directory: Path) -> tuple[Path, PlainHead, list[int]]:
    """Joined in the order that the files name, which is none that sorting gives."""
    config = SIZES.config(draft_vocab_size=SIZES.W, target_hidden_size=SIZES.S)
    plain = PlainEagle3(config, eagle3_tensors(SIZES), *TARGET_ENDS, "midlayer")
    return write_eagle3(directory, SIZES, eagle_aux_hidden_state_layer_ids=[4, 1, 3]), plain, [4, 1, 3]


HEADS = {"EAGLE-1": eagle1, "EAGLE-3": eagle3}


class Formulas:
    """Probabilities [V] of the token behind ``text`` and a path, from the target's states of ``text`` but its last."""

    def __init__(self, plain: PlainHead, layers: Sequence[int], text: Sequence[int]) -> None:
        hidden = target_session().prefill(0, text[:-1], tuple(sorted(layers)))
        self._plain, self._text = plain, text
        self._states = [hidden[layer] for layer in layers]

    def after(self, path: TokenPath) -> torch.Tensor:
        return self._plain.after_path(self._text, self._states, path).softmax(-1)

    def most_probable(self) -> dict[TokenPath, float]:
        """EAGLE-2's tree (Li et al. 2024, §4): path → joint probability of those that are kept.

        On every level the WIDTH most probable paths are expanded to their WIDTH best children; of all of them
        MAX_NODES are kept.
        """
        joint: dict[TokenPath, float] = {}
        expanded: list[TokenPath] = [()]
        for length in range(1, DEPTH + 1):
            for path in expanded:
                best = self.after(path).topk(WIDTH)
                for probability, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    joint[*path, token] = joint.get(path, 1.0) * probability
            level = [path for path in joint if len(path) == length]
            expanded = sorted(level, key=lambda path: -joint[path])[:WIDTH]
        kept = sorted(joint, key=lambda path: -joint[path])[:MAX_NODES]
        return {path: joint[path] for path in kept}


def path_of(tree: TokenTree, node: int) -> TokenPath:
    return tuple(tree.token_N[i] for i in tree.path_to(node)[1:])


@pytest.mark.parametrize("head", HEADS)
def test_trees_are_the_most_probable_paths_of_the_formulas(head: str, tmp_path: Path) -> None:
    checkpoint, plain, layers = HEADS[head](tmp_path)
    options: dict[str, Any] = {"growth": "dynamic", "width": WIDTH, "max_nodes": MAX_NODES}
    served = Served(drafter_of(checkpoint, weights="dense", **options), TEXT, 3)
    depths = set()
    for _ in range(CYCLES):
        joint = Formulas(plain, layers, list(served.request.tokens)).most_probable()
        tree = served.cycle(Budget(DEPTH))
        assert {path_of(tree, node) for node in range(1, tree.size)} == set(joint)
        drawn = [draw for draws in tree.draws_N for draw in draws]
        assert len(drawn) == tree.size - 1
        for draw in drawn:
            path = path_of(tree, draw.node)
            assert draw.probability == pytest.approx(joint[path] / joint.get(path[:-1], 1.0), rel=ROUNDING)
        depths.add(tree.depth)
    # they do not all look alike
    assert max(depths) > 1


@pytest.mark.parametrize("head", HEADS)
def test_tokens_are_drawn_from_the_probabilities_of_the_formulas(head: str, tmp_path: Path) -> None:
    checkpoint, plain, layers = HEADS[head](tmp_path)
    options: dict[str, Any] = {"growth": "static", "widths": [2, 2, 1], "children": "with_replacement"}
    served = Served(drafter_of(checkpoint, weights="dense", **options), TEXT, 3)
    for _ in range(CYCLES):
        formulas = Formulas(plain, layers, list(served.request.tokens))
        tree = served.cycle(Budget(DEPTH))
        assert tree.depth == DEPTH
        for node, draws in enumerate(tree.draws_N):
            for draw in draws:
                assert isinstance(draw.q_V, torch.Tensor)
                expected_V = formulas.after(path_of(tree, node))
                torch.testing.assert_close(draw.q_V.double(), expected_V, atol=1e-5, rtol=ROUNDING)
