"""Hydra heads: the formulas in float64, in trees of a batch over several rounds, the layout, what is refused.

Legend: N positions, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.conversion import convert_draft_head
from spec_sdk.model.draft_heads.hydra_session import HydraSession
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.tree import TreeBuilder
from tests.draft_heads.plain_formulas import PlainHead, rms_norm
from tests.draft_heads.test_formulas import Text, end_tensors, path_of, use_angles_of
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_heads import HeadSizes, load_head, random_ends, write_eagle1, write_head
from tests.support.tiny_hydra import PREFIX, SIZES, hydra_config, hydra_tensors, load_hydra, write_hydra
from tests.support.tiny_medusa import load_medusa, write_medusa

ENDS, HEADS = random_ends(SIZES), 4
VARIANTS: dict[str, dict[str, Any]] = {
    "Hydra": {},
    "Hydra of two blocks": {"layers": 2},
    "Hydra++": {"prefix": True},
    "Hydra++ of three blocks": {"prefix": True, "layers": 3},
}


class PlainHydra(PlainHead):
    """The formulas once more, for one path at a time; the whole text is computed anew for every node."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], layers: int = 1, prefix: bool = False) -> None:
        super().__init__(SIZES.config(), tensors, *end_tensors(ENDS), prefix=f"{PREFIX}.layers.0")
        self.layers, self.has_prefix = layers, prefix

    def after_path(self, tokens: Sequence[int], states: Sequence[torch.Tensor], path: Sequence[int]) -> torch.Tensor:
        """Logits [V] after ``tokens`` and then ``path``. ``states`` [N, M]: of all tokens but the last."""
        h_NM = rms_norm(states[0], self.target_norm_M, self.epsilon)
        if self.has_prefix:
            h_NM = self.after_attention(h_NM, self.attention(self.norm(h_NM, f"{self.prefix}.input_layernorm")))
            h_NM = self.norm(h_NM, f"{PREFIX}.norm")
        head = len(path)
        x = torch.cat([h_NM[-1], *(self.embedding_VM[token] for token in (tokens[-1], *path))])
        for j in range(self.layers):
            block = f"hydra_mlp.{head}.{2 * j + 1 if self.has_prefix else j}"
            y = self.linear(x, f"{block}.linear")
            x = (self.linear(x, f"{block}.res_connection") if j == 0 else x) + y * torch.sigmoid(y)
        return self.linear(x, f"hydra_lm_head.{head}{'.1' if self.has_prefix else ''}")


def refusal(directory: Path, sizes: HeadSizes = SIZES) -> str:
    with pytest.raises(UserError) as caught:
        load_hydra(directory, random_ends(sizes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_trees_of_a_batch_over_several_rounds(variant: str, tmp_path: Path) -> None:
    options = VARIANTS[variant]
    plain = PlainHydra(hydra_tensors(heads=HEADS, **options), **options)
    heads = load_hydra(write_hydra(tmp_path, heads=HEADS, **options), ENDS)
    # what leaves the last block of ten
    assert heads.positions == HEADS and heads.taps == (10,)
    session, texts = HydraSession(heads), [Text(SIZES, seed) for seed in range(3)]
    if heads.prefix is not None:
        use_angles_of(plain, heads.prefix.head)
    # a prompt may be fed in parts
    texts[2].tokens += [texts[2].token() for _ in range(12)]
    session.feed_features([2], [texts[2].tokens[1:8]], [heads.features(texts[2].hidden(0, 7))])
    texts[2].fed = 7
    for _ in range(2):
        pairs = [text.unfed() for text in texts]
        features = [heads.features(hidden) for _, hidden in pairs]
        roots = roots_of(session.feed_pairs(range(3), [tokens for tokens, _ in pairs], features))
        trees, logits = [TreeBuilder(text.tokens[-1]) for text in texts], [[root_V] for root_V in roots]
        for _ in range(3):
            new = [wherever(text, tree) for text, tree in zip(texts, trees, strict=True)]
            for slot, level in enumerate(rows_of(session.grow(range(3), trees, new))):
                logits[slot] += level.unbind()
        for slot, (text, tree, of_nodes) in enumerate(zip(texts, trees, logits, strict=True)):
            assert session.length(slot) == len(text.tokens) - 1
            states = [text.states[10, : len(text.tokens) - 1]]
            for node in range(tree.size):
                expected_V = plain.after_path(text.tokens, states, path_of(tree, node))
                torch.testing.assert_close(of_nodes[node], expected_V, atol=1e-9, rtol=1e-9)
            text.tokens += [*path_of(tree, text.choose.randrange(tree.size)), text.token()]
    with pytest.raises(ValueError, match="there are 4 heads, and none for what follows 5 tokens"):
        heads.logits(torch.zeros(1, 48).double(), torch.zeros(1, 5).long())


def wherever(text: Text, tree: TreeBuilder) -> int:
    """Add one to four nodes at any depth that a head is left for."""
    before = tree.size
    for _ in range(text.choose.randint(1, 4)):
        parents = [node for node in range(before) if tree.depth[node] < HEADS - 1]
        tree.add(text.choose.choice(parents), text.token(), "chosen")
    return tree.size - before


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    for name, prefix in (("Hydra", False), ("Hydra++", True)):
        published = open_draft_head(str(write_hydra(tmp_path / name, prefix=prefix)))
        assert published.layout == name and published.target == "org/tiny"
        heads = load_hydra(tmp_path / name, ENDS)
        assert (heads.prefix is not None) == prefix
    # what is not said is as the original program takes it: no prefix, tokens between are not read
    bare = write_head(tmp_path / "bare", {}, hydra_tensors())
    assert "grounded_heads is not true" in refusal(bare)


def test_the_embedding_is_the_targets_unless_the_file_has_another(tmp_path: Path) -> None:
    same, other = ENDS.embedding.weight_VM, torch.randn(96, 48)
    for name, own_VM in (("same", same), ("other", other)):
        write_head(tmp_path / name, hydra_config(), {**hydra_tensors(), "input_embed_fn.weight": own_VM})
    assert load_hydra(tmp_path / "same", ENDS).embedding is ENDS.embedding
    assert torch.equal(load_hydra(tmp_path / "other", ENDS).embedding.weight_VM, other.double())


def test_an_earlier_layer_is_read_without_the_final_norm(tmp_path: Path) -> None:
    """``hidden_state_offset`` counts from the last layer."""
    write_head(tmp_path, hydra_config(hidden_state_offset=3), hydra_tensors())
    heads, states = load_hydra(tmp_path, ENDS), torch.randn(4, 48, dtype=torch.float64)
    assert heads.taps == (7,) and torch.equal(heads.features({7: states}), states)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"grounded_heads": False}, {}, "grounded_heads is not true: these heads do not read the tokens between"),
        ({"hydra_head_arch": "eagle-attn"}, {}, "hydra_head_arch is 'eagle-attn'; of Hydra's heads mlp and prefix-mlp"),
        ({"hydra_num_heads": 4}, {}, "hydra_num_heads is 4, and 3 heads are stored"),
        ({"hydra_num_layers": 2}, {}, "hydra_num_layers is 2, and 1 blocks of head 0 are stored"),
        ({"hidden_state_offset": 0.5}, {}, "hidden_state_offset is 0.5, no number of layers"),
        ({"hidden_state_offset": 11}, {}, "the head reads layers -1 of its target, and tiny has 10"),
        ({}, {"hydra_mlp.1.0.res_connection.weight": None}, "'blocks.1.shortcut.weight' is missing"),
        ({}, {"hydra_lm_head.0.weight": None}, "has no matrix 'hydra_lm_head.0'"),
        ({}, {"hydra_mlp.2.0.linear.weight": torch.zeros(48, 144)}, "[48, 144], but the config asks for [48, 192]"),
        ({}, {"hydra_mlp.0.0.norm.weight": torch.zeros(48)}, "'hydra_mlp.0.0.norm.weight' is none that such a head"),
        ({}, {f"{PREFIX}.norm.weight": torch.zeros(48)}, "is none that such a head has"),
        # the places of blocks behind dropouts
        ({"hydra_head_arch": "prefix-mlp"}, {}, "hydra_num_heads is 3, and 0 heads are stored"),
    ],
)
def test_damaged_heads(
    config: dict[str, Any], change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors = {**hydra_tensors(), **change}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert message in refusal(write_head(tmp_path, hydra_config(**config), kept))


def test_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_hydra(tmp_path, prefix=True)
    assert "target of hidden size 48, and tiny has 64" in refusal(directory, replace(SIZES, S=64))
    assert "target of vocabulary 96, and tiny has 100" in refusal(directory, replace(SIZES, V=100))
    # the sizes of the prefix layer are not in its files
    assert "has shape [16, 48], but the config asks for [48, 48]" in refusal(directory, replace(SIZES, kv_heads=6))
    other = replace(ENDS, config=replace(ENDS.config, architecture="qwen2"))
    with pytest.raises(UserError, match="is a Llama layer of the target's sizes, and tiny is a qwen2"):
        load_hydra(directory, other)
    load_hydra(write_hydra(tmp_path / "plain"), other)
    load_hydra(directory, replace(ENDS, name="other"))
    assert "trained for org/tiny; the target is other" in capsys.readouterr().err


def test_heads_of_another_method(tmp_path: Path) -> None:
    hydra, eagle = write_hydra(tmp_path / "hydra"), write_eagle1(tmp_path / "eagle", HeadSizes())
    assert "is a head of eagle (EAGLE-1/2 layout), and this drafter needs Hydra's" in refusal(eagle)
    assert "this drafter needs Hydra's" in refusal(write_medusa(tmp_path / "medusa", SIZES))
    with pytest.raises(UserError, match=r"is a head of hydra \(Hydra layout\), and this drafter needs Medusa's"):
        load_medusa(hydra, ENDS)
    with pytest.raises(UserError, match=r"is a head of hydra \(Hydra layout\), and this drafter needs a decoder lay"):
        load_head(hydra, ENDS)


def test_the_published_pickle_is_converted(tmp_path: Path) -> None:
    write_hydra(tmp_path / "a", prefix=True)
    (tmp_path / "a" / "model.safetensors").unlink()
    torch.save(hydra_tensors(prefix=True), tmp_path / "a" / "hydra_lm_head.pt")
    assert "has only pickle weights (hydra_lm_head.pt)" in refusal(tmp_path / "a")
    assert convert_draft_head(tmp_path / "a", tmp_path / "b").layout == "Hydra++"
    found, same = (
        load_hydra(directory, ENDS) for directory in (tmp_path / "b", write_hydra(tmp_path / "c", prefix=True))
    )
    state, path = torch.randn(2, 48, dtype=torch.float64), torch.tensor([[3, 4], [5, 6]])
    assert torch.equal(found.logits(state, path), same.logits(state, path))
