"""Exported and read again, a head says the same to the bit, whichever layout it came in and goes out in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.target_ends import TargetEnds
from tests.export.exports import TAPPED, exported, logits_of
from tests.support.tiny_blocks import BlockSizes, speculators_block_config, write_dflash, write_dspark
from tests.support.tiny_blocks import block_tensors as block_head
from tests.support.tiny_heads import (
    HeadSizes,
    eagle3_tensors,
    speculators_config,
    write_eagle1,
    write_eagle3,
    write_head,
)
from tests.support.tiny_hydra import write_hydra
from tests.support.tiny_medusa import medusa_tensors, vllm_config, vllm_tensors, write_medusa
from tests.support.tiny_peagle import write_peagle

SIZES, BLOCKS = HeadSizes(), BlockSizes()
WHOLE, WIDER = replace(SIZES, W=SIZES.V), replace(SIZES, M=36)
BOTH = ("speculators", "safeailab")
SLIDING: dict[str, Any] = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}


def normed(directory: Path, together: bool) -> Path:
    tensors = eagle3_tensors(SIZES)
    gains = torch.rand(3, 48) + 0.5
    tensors |= {"input_norm.weight": gains.flatten()} if together else {}
    tensors |= {} if together else {f"fc_norm.{i}.weight": gains[i].clone() for i in range(3)}
    flag: dict[str, Any] = {"norm_before_fc": True} if together else {"fc_norm": True}
    more: dict[str, Any] = {"draft_vocab_size": SIZES.W, "norm_before_residual": True, "norm_output": True}
    return write_head(directory, speculators_config(SIZES, "eagle3", **TAPPED, **more, **flag), tensors)


def borrowing(directory: Path) -> Path:
    """Its output rows are the target's."""
    tensors = eagle3_tensors(SIZES)
    del tensors["lm_head.weight"]
    more: dict[str, Any] = {
        "draft_vocab_size": SIZES.W,
        "weights_of_target": ["head"],
        "norm_before_residual": False,
    }
    return write_head(directory, speculators_config(SIZES, "eagle3", **TAPPED, **more), tensors)


def unsorted(directory: Path) -> Path:
    """Its output rows are in the order of frequency, as a list of FR-Spec is."""
    tensors = eagle3_tensors(SIZES)
    order = torch.randperm(SIZES.W, generator=torch.Generator().manual_seed(2))
    tokens = (tensors["d2t"] + torch.arange(SIZES.W))[order]
    tensors["d2t"] = tokens - torch.arange(SIZES.W)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order]
    return write_head(directory, SIZES.config(draft_vocab_size=SIZES.W, **TAPPED), tensors)


def qwen_bodied(directory: Path) -> Path:
    """With norms of Q and K, biases, and rotary positions that are stretched."""
    tensors = eagle3_tensors(SIZES)
    attention = "midlayer.self_attn"
    tensors |= {f"{attention}.{part}_norm.weight": torch.rand(12) + 0.5 for part in "qk"}
    rows = {part: len(tensors[f"{attention}.{part}_proj.weight"]) for part in "qkvo"}
    tensors |= {f"{attention}.{part}_proj.bias": torch.randn(size) for part, size in rows.items()}
    rope = {"type": "linear", "factor": 3.0}
    more = {"draft_vocab_size": SIZES.W, "attention_bias": True, "rope_theta": 5e5, "rope_scaling": rope}
    return write_head(directory, SIZES.config(**more, **TAPPED), tensors)


def stretched_twice(directory: Path) -> Path:
    """With positions that are stretched in one of two places, which is the one that counts."""
    plain, linear = {"rope_theta": 5e5, "rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}
    return write_eagle3(directory, SIZES, rope_parameters=plain, rope_scaling=linear, **TAPPED)


def eagle1_in_speculators(directory: Path) -> Path:
    source = write_eagle1(directory.with_name("eagle1"), SIZES)
    return write_head(
        directory, speculators_config(SIZES, "eagle", fusion_bias=True), load_file(source / "model.safetensors")
    )


def speculators_block(directory: Path) -> Path:
    sizes = replace(BLOCKS, W=40)
    config = speculators_block_config(sizes, "dflash", sliding_window_non_causal=True)
    return write_head(directory, config, block_head(sizes))


def vllms_medusa(directory: Path) -> Path:
    tensors = {name: tensor for name, tensor in vllm_tensors(medusa_tensors(SIZES)).items() if "bias" not in name}
    return write_head(directory, vllm_config(SIZES, medusa_fc_bias=False), tensors)


HEADS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "EAGLE-3": (lambda at: write_eagle3(at, SIZES, **TAPPED), BOTH),
    "EAGLE-3, default layers": (lambda at: write_eagle3(at, SIZES), BOTH),
    "EAGLE-3, all tokens": (lambda at: write_eagle3(at, WHOLE, **TAPPED), BOTH),
    "EAGLE-3, narrower": (lambda at: write_eagle3(at, WIDER, **TAPPED), BOTH),
    "EAGLE-3, scaled": (lambda at: write_eagle3(at, SIZES, logit_scale=0.5, **TAPPED), ("safeailab",)),
    "EAGLE-3, normed together": (lambda at: normed(at, True), BOTH),
    "EAGLE-3, normed each": (lambda at: normed(at, False), BOTH),
    "EAGLE-3, the target's rows": (borrowing, BOTH),
    "EAGLE-3, stretched twice": (stretched_twice, BOTH),
    "EAGLE-3, by frequency": (unsorted, BOTH),
    "EAGLE-3, Qwen's layer": (qwen_bodied, BOTH),
    "EAGLE-1": (lambda at: write_eagle1(at, SIZES), ("safeailab",)),
    "EAGLE-1, no bias": (lambda at: write_eagle1(at, SIZES, bias=False), ("safeailab",)),
    "EAGLE-1 of speculators": (eagle1_in_speculators, ("safeailab",)),
    "P-EAGLE": (lambda at: write_peagle(at, SIZES, **TAPPED), ("speculators",)),
    "DFlash": (lambda at: write_dflash(at, BLOCKS), ("zlab", "speculators")),
    "DFlash, narrower": (lambda at: write_dflash(at, replace(BLOCKS, M=36)), ("zlab", "speculators")),
    "DFlash of speculators": (speculators_block, ("zlab", "speculators")),
    "DFlash, causal windows": (lambda at: write_dflash(at, BLOCKS, **SLIDING), ("zlab", "speculators")),
    "DFlash, windows": (lambda at: write_dflash(at, BLOCKS, is_causal=False, **SLIDING), ("zlab", "speculators")),
    "DFlash, causal": (lambda at: write_dflash(at, BLOCKS, is_causal=True), ("zlab",)),
    "DFlash, scaled": (
        lambda at: write_dflash(at, BLOCKS, dflash_config={"output_multiplier": 0.5, "final_logit_softcapping": 3.0}),
        ("zlab",),
    ),
    "DSpark": (
        lambda at: write_dspark(at, replace(BLOCKS, W=40, rank=6, confidence=True)),
        ("zlab", "speculators"),
    ),
    "DSpark, gated": (lambda at: write_dspark(at, replace(BLOCKS, rank=6, markov="gated")), ("zlab", "speculators")),
    "DSpark, rnn, fill-in": (
        lambda at: write_dspark(at, replace(BLOCKS, rank=6, markov="rnn"), sample_from_anchor=False),
        ("zlab", "speculators"),
    ),
    "Medusa": (lambda at: write_medusa(at, SIZES, layers=2), ("medusa",)),
    "Medusa of vLLM": (vllms_medusa, ("medusa",)),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_says_the_same(name: str, target: Path, ends: TargetEnds, tmp_path: Path) -> None:
    write, formats = HEADS[name]
    source = write(tmp_path / "source")
    said = logits_of(source, ends)
    assert bool(said.isfinite().any())
    for wanted in formats:
        written = exported(source, target, tmp_path / wanted, format=wanted)
        found = open_draft_head(str(written.directory))
        assert torch.equal(logits_of(written.directory, ends), said), wanted
        again = exported(written.directory, target, tmp_path / f"{wanted} again", format=wanted)
        for file in ("config.json", "model.safetensors"):
            assert (again.directory / file).read_bytes() == (written.directory / file).read_bytes(), (wanted, file)
        assert found.spec.method == open_draft_head(str(source)).spec.method


@pytest.mark.parametrize("name", HEADS)
def test_auto_takes_a_format_that_holds_it(name: str, target: Path, tmp_path: Path) -> None:
    write, formats = HEADS[name]
    source = write(tmp_path / "source")
    first = "speculators" if formats[0] in ("zlab", "safeailab") and "EAGLE-1" not in name else formats[0]
    if first in formats:
        assert exported(source, target, tmp_path / "out").format == first
    else:
        with pytest.raises(UserError, match=f"use task.format={formats[0]}|speculators has no word"):
            exported(source, target, tmp_path / "out")


def test_the_lists_of_layers_that_both_programs_read(target: Path, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", SIZES, **TAPPED)
    config = json.loads(
        (exported(source, target, tmp_path / "a", format="safeailab").directory / "config.json").read_text()
    )
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 4, 9]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 3, 8]
    block = write_dflash(tmp_path / "block", BLOCKS, leaving=(0, 3, 6))
    config = json.loads((exported(block, target, tmp_path / "b").directory / "config.json").read_text())
    assert config["aux_hidden_state_layer_ids"] == [1, 4, 7]
    # vLLM would read false as: all layers see no later rows
    assert config["sliding_window_non_causal"] is True


def test_output_rows_stand_in_the_order_of_tokens(target: Path, tmp_path: Path) -> None:
    stored = load_file(
        exported(unsorted(tmp_path / "source"), target, tmp_path / "out").directory / "model.safetensors"
    )
    tokens = stored["d2t"] + torch.arange(SIZES.W)
    assert torch.equal(tokens, stored["t2d"].nonzero()[:, 0]) and bool((tokens.diff() > 0).all())


def test_dtypes(target: Path, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", SIZES, **TAPPED)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (None, "float32")):
        directory = exported(source, target, tmp_path / name, dtype=dtype).directory
        stored = load_file(directory / "model.safetensors")
        assert stored["fc.weight"].dtype == getattr(torch, name) and stored["d2t"].dtype == torch.int64
        assert json.loads((directory / "config.json").read_text())["torch_dtype"] == name


REFUSED: dict[str, tuple[Callable[[Path], Path], dict[str, Any], str]] = {
    "Hydra": (lambda at: write_hydra(at, SIZES), {}, "neither vLLM nor SGLang serves Hydra"),
    "another format": (lambda at: write_eagle3(at, SIZES), {"format": "zlab"}, "use speculators or safeailab"),
    "EAGLE-1": (lambda at: write_eagle1(at, SIZES), {"format": "speculators"}, "use safeailab"),
    "scaled": (
        lambda at: write_eagle3(at, SIZES, logit_scale=0.5),
        {"format": "speculators"},
        "has no word for logit_scale=0.5",
    ),
    "mixed windows": (
        lambda at: write_dflash(at, BLOCKS, layer_types=["sliding_attention", "full_attention"], sliding_window=8),
        {"format": "speculators"},
        "use task.format=zlab",
    ),
    "deeper than a block": (lambda at: write_dflash(at, BLOCKS), {"depth": 5}, "more than the 4 tokens"),
    "another target": (lambda at: write_eagle3(at, replace(SIZES, V=80)), {}, "vocabulary 80"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, target: Path, tmp_path: Path) -> None:
    write, asked, words = REFUSED[name]
    source = write(tmp_path / "source")
    with pytest.raises(UserError) as caught:
        exported(source, target, tmp_path / "out", **asked)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_head_of_another_target_is_not_exported(target: Path, tmp_path: Path) -> None:
    source = write_eagle3(tmp_path / "source", SIZES, **TAPPED)
    (source / "training.json").write_text(json.dumps({"method": "eagle3", "target_identity": "0123456789abcdef"}))
    with pytest.raises(UserError, match="was trained for another target"):
        exported(source, target, tmp_path / "out")
