"""Heads that draft a block: what is recognised, what the numbers in config.json mean, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.block_head import BlockHead
from spec_sdk.model.draft_heads.block_spec import DSparkSpec
from spec_sdk.model.draft_heads.conversion import convert_draft_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.tapped_layers import evenly_spread
from tests.support.tiny_blocks import (
    MASK,
    BlockSizes,
    block_tensors,
    load_block,
    speculators_block_config,
    write_dflash,
    write_dspark,
    zlab_config,
)
from tests.support.tiny_heads import load_head, random_ends, write_eagle1, write_head

SIZES = BlockSizes(layers=1)
DSPARK = replace(SIZES, rank=6, confidence=True)
TENSORS = block_tensors(SIZES)


def head_of(directory: Path, sizes: BlockSizes = SIZES, layers: int = 10, **choices: Any) -> BlockHead:
    return load_block(directory, random_ends(sizes, layers), **choices).head


def refusal(directory: Path, sizes: BlockSizes = SIZES, layers: int = 10, **choices: Any) -> str:
    with pytest.raises(UserError) as caught:
        head_of(directory, sizes, layers, **choices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    published = {
        "DFlash": write_dflash(tmp_path / "a", SIZES),
        "DSpark": write_dspark(tmp_path / "b", DSPARK),
        "speculators dflash": write_head(tmp_path / "c", speculators_block_config(SIZES, "dflash"), TENSORS),
        "speculators dspark": write_head(
            tmp_path / "d", speculators_block_config(DSPARK, "dspark"), block_tensors(DSPARK)
        ),
    }
    for layout, directory in published.items():
        assert open_draft_head(str(directory)).layout == layout
    # DeepSpec's EAGLE-3 heads have tensors of the same names
    config = {**zlab_config(SIZES), "architectures": ["Qwen3Eagle3Model"]}
    assert "is no draft head of a known layout" in refusal(write_head(tmp_path / "e", config, TENSORS))


def test_other_names_of_the_same_tensors(tmp_path: Path) -> None:
    renamed = {
        name.replace("hidden_norm", "encoder.output_norm_enc").replace("fc.", "encoder.fc."): tensor
        for name, tensor in TENSORS.items()
    }
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in renamed.items()}
    head = head_of(write_head(tmp_path, zlab_config(SIZES), renamed))
    assert head.taps == (1, 4, 7) and head.form.size == 5


@pytest.mark.parametrize(
    ("taps", "config"),
    [
        # what leaves block i is layer i + 1
        ((1, 4, 7), {}),
        ((2, 5, 8), {"dflash_config": {"target_layer_ids": [1, 4, 7]}, "target_layer_ids": [1, 4, 7]}),
        ((2, 5, 8), {"dflash_config": {"target_layer_ids": None}, "target_layer_ids": [1, 4, 7]}),
        ((0, 5, 8), {"dflash_config": {"target_layer_ids": [-1, 4, 7]}}),
        # counted as what enters a block
        ((1, 4, 7), {"dflash_config": {"target_layer_ids": None, "layer_ids": [1, 4, 7]}}),
    ],
)
def test_numbers_of_target_layers(taps: tuple[int, ...], config: dict[str, Any], tmp_path: Path) -> None:
    assert head_of(write_dflash(tmp_path, SIZES, **config)).taps == taps


def test_layers_that_are_not_named_or_contradict(tmp_path: Path) -> None:
    # evenly spread from the second to the last but two: 36 layers are z-lab's Qwen3-8B
    assert evenly_spread(36, 5) == (2, 10, 18, 26, 34) and evenly_spread(30, 1) == (16,)
    one = replace(SIZES, taps=1)
    directory = write_dflash(tmp_path / "a", one, dflash_config={"target_layer_ids": None})
    assert head_of(directory, one).taps == (6,)
    assert head_of(directory, one, target_layers=(2,)).taps == (2,)
    both = write_dflash(tmp_path / "b", SIZES, target_layer_ids=[1, 4, 7])
    assert "is [1, 4, 7] at the top, and [0, 3, 6] in dflash_config" in refusal(both)
    assert head_of(both, target_layers=(1, 4, 7)).taps == (1, 4, 7)
    assert "reads layers 1, 4, 7 of its target, and tiny has 6" in refusal(both, layers=6, target_layers=(1, 4, 7))


def test_what_is_meant_where_nothing_is_said(tmp_path: Path) -> None:
    config = zlab_config(SIZES)
    del config["block_size"]
    assert head_of(write_head(tmp_path / "a", config, TENSORS)).form.size == 16
    # inside dflash_config it goes before the top
    inside = zlab_config(SIZES, dflash_config={"block_size": 8})
    assert head_of(write_head(tmp_path / "b", inside, TENSORS)).form.size == 8
    form = head_of(write_dspark(tmp_path / "c", DSPARK), DSPARK).form
    assert (form.from_anchor, form.drafts, form.mask_token) == (True, 5, MASK)
    speculators = speculators_block_config(SIZES, "dflash")
    del speculators["block_size"]
    form = head_of(write_head(tmp_path / "d", speculators, TENSORS)).form
    assert (form.from_anchor, form.size, form.drafts) == (False, 8, 7)
    with_parts = speculators_block_config(replace(DSPARK, rank=256), "dspark")
    for key in ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"):
        del with_parts[key]
    spec = open_draft_head(str(write_head(tmp_path / "e", with_parts, TENSORS))).spec
    assert isinstance(spec, DSparkSpec) and spec.markov_rank == 256 and spec.confidence_reads_token


def test_speculators_say_of_layers_with_a_window_what_they_see(tmp_path: Path) -> None:
    body = SIZES.body(sliding_window=8) | {"layer_types": ["sliding_attention"]}
    for key, causal in (({}, True), ({"sliding_window_non_causal": True}, False)):
        config = {**speculators_block_config(SIZES, "dflash", body=body), **key}
        directory = write_head(tmp_path / str(causal), config, TENSORS)
        assert head_of(directory).form.causal == (causal,)


def test_heads_are_as_wide_as_their_norm_where_that_is_not_said(tmp_path: Path) -> None:
    config = zlab_config(replace(SIZES, head_dim=16))
    del config["head_dim"]
    tensors = block_tensors(replace(SIZES, head_dim=16))
    assert head_of(write_head(tmp_path, config, tensors)).config.head_dim == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dflash_config": {"mask_token_id": None}}, "no mask_token_id"),
        ({"dflash_config": {"mask_token_id": 96}}, "mask_token_id is 96, and there are 96 tokens"),
        ({"block_size": 1}, "block_size is 1, and without sample_from_anchor the anchor is all of it"),
        ({"num_target_layers": 36}, "is made for a target of 36 layers, and tiny has 10"),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 4, "is_causal": False},
            "sliding_window is 4, less than the block of 5 rows",
        ),
        ({"layer_types": ["sliding_attention"]}, "no sliding_window"),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 9, "use_sliding_window": False},
            "layer_types has sliding_attention, and use_sliding_window is false",
        ),
        ({"layer_types": ["full_attention"] * 2}, "layer_types must list the types of 1 layers"),
        ({"is_neox_style": False}, "is_neox_style is false"),
        ({"dflash_config": {"use_swa": True}}, "use_swa (True) is not supported"),
        ({"dflash_config": {"projector_type": "domino"}}, "projector_type ('domino') is not supported"),
        ({"target_hidden_size": 64}, "made for a target of hidden size 64, and tiny has 48"),
        ({"vocab_size": 100}, "made for a target of vocabulary 100, and tiny has 96"),
        ({"draft_vocab_size": 40}, "tensor 'd2t' and 1 more are missing"),
        (
            {"num_hidden_layers": 2, "layer_types": None},
            "tensor 'layers.1.input_layernorm.weight' and 10 more are missing",
        ),
        ({"attention_bias": True}, "there is no tensor 'layers.0.self_attn.q_proj.bias'"),
        ({"dflash_config": {"target_layer_ids": [0, 3]}}, "'fc.weight' has shape [48, 144], but"),
    ],
)
def test_contradictions(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(write_dflash(tmp_path, SIZES, **config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"markov_head_type": "gatet"}, "markov_head_type is 'gatet', did you mean 'gated'?"),
        ({"markov_head_type": "gated"}, "tensor 'markov_head.gate_proj.weight' and 1 more are missing"),
        ({"markov_rank": 0}, "confidence_head_with_markov is true, and markov_rank is 0"),
        ({"markov_rank": 5}, "'markov_head.markov_w1.weight' has shape [96, 6], but the config asks for [96, 5]"),
        ({"enable_confidence_head": False}, "'confidence_head.proj.bias' and 1 more is none that such a head has"),
        ({"confidence_head_with_markov": False}, "'confidence_head.proj.weight' has shape [1, 54], but"),
    ],
)
def test_contradictions_of_dspark(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(write_dspark(tmp_path, DSPARK, **config))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("candidate_selector.hidden_projection.weight", "DFlash2"),
        ("lilicorr.feature_norm.weight", "LiLiCorr"),
        ("xpress_head.w1.weight", "XPress"),
        ("prefix_gru.weight_ih_l0", "Domino"),
    ],
)
def test_other_methods_are_refused_by_name(name: str, method: str, tmp_path: Path) -> None:
    directory = write_head(tmp_path, zlab_config(SIZES), {**TENSORS, name: torch.zeros(2, 2)})
    assert f"is a head of {method} ('{name}'); DFlash and DSpark are read" in refusal(directory)


def test_unread_and_missing_tensors(tmp_path: Path) -> None:
    more = {**TENSORS, "mask_hidden": torch.zeros(1, 1, 144)}
    assert "'mask_hidden' is none that such a head has" in refusal(write_head(tmp_path / "a", zlab_config(SIZES), more))
    fewer = {name: tensor for name, tensor in TENSORS.items() if name != "norm.weight"}
    assert "'norm.weight' is missing" in refusal(write_head(tmp_path / "b", zlab_config(SIZES), fewer))
    for kind in ("dflash2", "xpress"):
        directory = write_head(tmp_path / kind, speculators_block_config(SIZES, kind), TENSORS)
        assert f"speculators_model_type is '{kind}'; read are eagle, eagle3, peagle, dfl" in refusal(directory)


def test_heads_of_another_method(tmp_path: Path) -> None:
    eagle = write_eagle1(tmp_path / "eagle", SIZES)
    assert "is a head of eagle (EAGLE-1/2 layout), and this drafter needs one that drafts a block" in refusal(eagle)
    with pytest.raises(UserError, match=r"is a head of dspark \(DSpark layout\), and this drafter needs a decoder la"):
        load_head(write_dspark(tmp_path / "block", DSPARK), random_ends(DSPARK))


def test_a_mask_embedding_in_a_pickle_is_converted(tmp_path: Path) -> None:
    """It would be another computation without it, so the head is refused until it is."""
    embedding = torch.randn(SIZES.M)
    for name, pickle in (("a", embedding), ("b", {"mask_token_id": MASK, "embedding": embedding[None]})):
        directory = write_dflash(tmp_path / name, SIZES)
        torch.save(pickle, directory / "mask_embedding.pt")
        assert "has a pickle, mask_embedding.pt; " in refusal(directory)
        convert_draft_head(directory, tmp_path / f"{name}-converted")
        head = head_of(tmp_path / f"{name}-converted")
        fed = head.embed(torch.tensor([[7, MASK]]))[0]
        torch.testing.assert_close(fed[1], embedding.double())
        torch.testing.assert_close(fed[0], random_ends(SIZES).embedding.weight_VM[7])
    other = write_dflash(tmp_path / "c", SIZES)
    torch.save({"mask_token_id": 9, "embedding": embedding}, other / "mask_embedding.pt")
    with pytest.raises(UserError, match="is of token 9, and config.json says mask_token_id=3"):
        convert_draft_head(other, tmp_path / "c-converted")
