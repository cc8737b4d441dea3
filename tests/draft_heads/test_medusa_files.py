"""Medusa heads: the published layouts, the formulas in float64, what is refused.

Legend: N states, M model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.conversion import convert_draft_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from tests.support.tiny_heads import EPSILON, HeadSizes, load_head, random_ends, write_eagle1, write_head
from tests.support.tiny_medusa import load_medusa, medusa_tensors, vllm_config, vllm_tensors, write_medusa

SIZES = HeadSizes()
ENDS = random_ends(SIZES)
STATES_NM = torch.randn(5, SIZES.S, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def plain_logits(
    tensors: Mapping[str, torch.Tensor], head: int, layers: int = 1, output_VM: torch.Tensor | None = None
) -> torch.Tensor:
    """The paper's formula once more: the target's final norm, x + SiLU(W x + b) for every block, the output matrix."""
    x = STATES_NM / (STATES_NM.square().mean(-1, keepdim=True) + EPSILON).sqrt() * ENDS.final_norm_M
    for j in range(layers):
        y = x @ tensors[f"{head}.{j}.linear.weight"].double().T + tensors[f"{head}.{j}.linear.bias"].double()
        x = x + y * torch.sigmoid(y)
    return x @ (tensors[f"{head}.{layers}.weight"] if output_VM is None else output_VM).double().T


def logits_of(directory: Path, positions: int = 3) -> list[torch.Tensor]:
    heads = load_medusa(directory, ENDS)
    return heads.logits({heads.taps[0]: STATES_NM}, positions)


def refusal(directory: Path, sizes: HeadSizes = SIZES) -> str:
    with pytest.raises(UserError) as caught:
        load_medusa(directory, random_ends(sizes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("layers", [1, 2])
def test_heads_compute_the_papers_formula(layers: int, tmp_path: Path) -> None:
    heads = load_medusa(write_medusa(tmp_path, SIZES, heads=4, layers=layers), ENDS)
    # what leaves the last block of ten
    assert heads.positions == 4 and heads.taps == (10,)
    found, tensors = heads.logits({10: STATES_NM}, 3), medusa_tensors(SIZES, 4, layers)
    assert len(found) == 3
    for head, logits_NV in enumerate(found):
        torch.testing.assert_close(logits_NV, plain_logits(tensors, head, layers), atol=1e-9, rtol=1e-9)


def test_vllms_conversion_is_the_same(tmp_path: Path) -> None:
    expected, tensors = logits_of(write_medusa(tmp_path / "a", SIZES)), medusa_tensors(SIZES)
    prefixed = {f"medusa_heads.{name}": tensor for name, tensor in vllm_tensors(tensors).items()}
    for name, these in (("b", vllm_tensors(tensors)), ("c", prefixed)):
        directory = write_head(tmp_path / name, vllm_config(SIZES), these)
        assert open_draft_head(str(directory)).layout == "Medusa of vLLM"
        assert all(torch.equal(*pair) for pair in zip(logits_of(directory), expected, strict=True))
    original = {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}
    found = logits_of(write_head(tmp_path / "d", {}, original))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    scaled = logits_of(write_head(tmp_path / "e", vllm_config(SIZES, logit_scale=0.25), vllm_tensors(tensors)))
    torch.testing.assert_close(scaled[1], expected[1] / 4)


def test_one_output_head_for_all(tmp_path: Path) -> None:
    """``original_lm_head``: the file's one output head, or the target's where the file has none."""
    tensors, config = medusa_tensors(SIZES), vllm_config(SIZES, original_lm_head=True)
    blocks = {name: tensor for name, tensor in vllm_tensors(tensors).items() if name.startswith("blocks")}
    own_VM = tensors["2.1.weight"]
    cases: tuple[tuple[str, dict[str, torch.Tensor], torch.Tensor], ...] = (
        ("none", {}, ENDS.output_head.weight_OI),
        ("shared", {"lm_head.weight": own_VM}, own_VM),
        ("first", {"lm_heads.0.weight": own_VM}, own_VM),
    )
    for name, more, output_VM in cases:
        found = logits_of(write_head(tmp_path / name, config, {**blocks, **more}))
        for head, logits_NV in enumerate(found):
            expected_NV = plain_logits(tensors, head, output_VM=output_VM)
            torch.testing.assert_close(logits_NV, expected_NV, atol=1e-9, rtol=1e-9)


def test_a_truncated_vocabulary(tmp_path: Path) -> None:
    """``token_map`` holds tokens, not offsets as ``d2t`` does."""
    tensors, tokens = medusa_tensors(SIZES), torch.arange(5, 85, 2)
    short = {
        name: tensor[tokens] if name.startswith("lm_heads") else tensor
        for name, tensor in vllm_tensors(tensors).items()
    }
    config = vllm_config(SIZES, truncated_vocab_size=40)
    found = logits_of(write_head(tmp_path / "a", config, {**short, "token_map": tokens}))
    for head, logits_NV in enumerate(found):
        assert logits_NV.shape == (5, 96) and bool((logits_NV > -torch.inf).sum(-1).eq(40).all())
        expected_NV = plain_logits(tensors, head)[:, tokens]
        torch.testing.assert_close(logits_NV[:, tokens], expected_NV, atol=1e-9, rtol=1e-9)
    assert "truncated_vocab_size is 40 of 96, and there is no token_map" in refusal(
        write_head(tmp_path / "b", config, short)
    )
    for name, token_map, message in (
        ("c", tokens + 20, "token_map leads to token 103, and the target's vocabulary has 96 tokens"),
        ("d", tokens // 4, "token_map leads to 20 different tokens, and there are 40 rows"),
        ("e", tokens.float(), "'token_map' is stored as F32"),
    ):
        assert message in refusal(write_head(tmp_path / name, config, {**short, "token_map": token_map}))


def test_how_many_heads_there_are(tmp_path: Path) -> None:
    """Files of Medusa's first version say 2 and hold 5; their own program reads 5."""
    heads = load_medusa(write_medusa(tmp_path / "a", SIZES, heads=5, medusa_num_heads=2), ENDS)
    assert heads.positions == 5
    more = write_medusa(tmp_path / "b", SIZES, heads=3, medusa_num_heads=7)
    assert "medusa_num_heads is 7, and 3 heads are stored" in refusal(more)
    vllm = write_head(tmp_path / "c", vllm_config(SIZES, heads=2), vllm_tensors(medusa_tensors(SIZES)))
    assert "num_heads is 2, and 3 heads are stored" in refusal(vllm)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"medusa_num_layers": 2}, {}, "medusa_num_layers is 2, and head 0 has 1 residual blocks"),
        ({}, {"1.0.linear.bias": None}, "'blocks.1.layers.0.bias' is missing"),
        ({}, {"1.1.weight": None}, "'lm_heads.1.weight' is missing"),
        ({}, {"0.1.weight": None}, "has no matrix 'lm_heads.0.weight'"),
        ({}, {"2.1.weight": torch.zeros(95, 48)}, "has shape [95, 48], but the config asks for [96, 48]"),
        ({}, {"2.0.norm.weight": torch.zeros(48)}, "'2.0.norm.weight' is none that such a head has"),
        ({}, {"1.0.linear.weight": torch.zeros(48, 48).int()}, "I32"),
    ],
)
def test_damaged_heads(
    config: dict[str, Any], change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    tensors = {**medusa_tensors(SIZES), **change}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert message in refusal(write_head(tmp_path, config, kept))


def test_biases_of_vllms_conversion_are_what_it_says(tmp_path: Path) -> None:
    config = vllm_config(SIZES, medusa_fc_bias=False)
    found = refusal(write_head(tmp_path, config, vllm_tensors(medusa_tensors(SIZES))))
    assert "'blocks.0.layers.0.bias' and 2 more is none that such a head has" in found


def test_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_medusa(tmp_path, SIZES, base_model_name_or_path="lmsys/vicuna-7b-v1.3")
    assert "target of hidden size 48, and tiny has 64" in refusal(directory, replace(SIZES, S=64))
    assert "target of vocabulary 96, and tiny has 100" in refusal(directory, replace(SIZES, V=100))
    assert not capsys.readouterr().err
    load_medusa(directory, ENDS)
    assert "trained for lmsys/vicuna-7b-v1.3; the target is tiny" in capsys.readouterr().err


def test_heads_of_another_method(tmp_path: Path) -> None:
    eagle = write_eagle1(tmp_path / "eagle", SIZES)
    assert "is a head of eagle (EAGLE-1/2 layout), and this drafter needs Medusa's" in refusal(eagle)
    medusa = write_medusa(tmp_path / "medusa", SIZES)
    with pytest.raises(UserError, match=r"is a head of medusa \(Medusa layout\), and this drafter needs a decoder lay"):
        load_head(medusa, ENDS)
    with pytest.raises(UserError, match=r"eagle3 is asked for, and .* is a head of medusa"):
        load_head(medusa, ENDS, method="eagle3")


def test_the_published_pickle_is_converted(tmp_path: Path) -> None:
    write_medusa(tmp_path / "a", SIZES)
    (tmp_path / "a" / "medusa_lm_head.safetensors").unlink()
    torch.save(medusa_tensors(SIZES), tmp_path / "a" / "medusa_lm_head.pt")
    assert "has only pickle weights (medusa_lm_head.pt)" in refusal(tmp_path / "a")
    assert convert_draft_head(tmp_path / "a", tmp_path / "b").layout == "Medusa"
    same = logits_of(write_medusa(tmp_path / "c", SIZES))
    assert all(torch.equal(*pair) for pair in zip(logits_of(tmp_path / "b"), same, strict=True))
