"""Published layouts: what is recognised, what the numbers in config.json mean, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.eagle1 import Eagle1Head
from spec_sdk.model.draft_heads.eagle3 import Eagle3Head
from spec_sdk.model.draft_heads.head import DraftHead
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.draft_heads.session import DraftHeadSession
from tests.support.draft_logits import roots_of
from tests.support.tiny_heads import (
    HeadSizes,
    eagle1_tensors,
    eagle3_tensors,
    load_head,
    random_ends,
    speculators_config,
    write_eagle1,
    write_eagle3,
    write_head,
)

SIZES = HeadSizes()
WHOLE = replace(SIZES, W=SIZES.V)


def head_in(directory: Path, sizes: HeadSizes = SIZES, layers: int = 10, **choices: Any) -> DraftHead:
    return load_head(directory, random_ends(sizes, layers), **choices).head


def logits_of(directory: Path, sizes: HeadSizes = SIZES, **choices: Any) -> torch.Tensor:
    """What a head says after a short text; the target's states are the same in every call."""
    session = DraftHeadSession(load_head(directory, random_ends(sizes), **choices))
    generator = torch.Generator().manual_seed(5)
    hidden = {layer: torch.randn(4, sizes.S, dtype=torch.float64, generator=generator) for layer in range(11)}
    return roots_of(session.feed_pairs([0], [[7, 8, 9, 10]], [session.head.features(hidden)]))[0]


def refusal(directory: Path, sizes: HeadSizes = SIZES, layers: int = 10, **choices: Any) -> str:
    with pytest.raises(UserError) as caught:
        head_in(directory, sizes, layers, **choices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    eagle3, eagle1 = eagle3_tensors(SIZES), eagle1_tensors(SIZES, bias=False)
    more: dict[str, Any] = {"draft_vocab_size": SIZES.W, "norm_before_residual": False}
    with_ends = {**eagle1, "embed_tokens.weight": torch.randn(96, 48), "lm_head.weight": torch.randn(96, 48)}
    heads = {
        "EAGLE-3": write_eagle3(tmp_path / "eagle3", SIZES),
        "EAGLE-1/2": write_eagle1(tmp_path / "eagle1", SIZES),
        "speculators eagle3": write_head(tmp_path / "s3", speculators_config(SIZES, "eagle3", **more), eagle3),
        "speculators eagle": write_head(tmp_path / "s1", speculators_config(SIZES, "eagle"), with_ends),
    }
    for layout, directory in heads.items():
        assert open_draft_head(str(directory)).layout == layout
        assert type(head_in(directory)) is (Eagle3Head if "3" in layout else Eagle1Head)
    assert open_draft_head(str(heads["speculators eagle3"])).target == "org/tiny"


def test_all_spellings_of_an_eagle_3_head_are_one(tmp_path: Path) -> None:
    """``midlayer`` or ``layers.0``; config.json of SafeAILab, SpecForge or speculators."""
    original = logits_of(write_eagle3(tmp_path / "a", SIZES))
    tensors = eagle3_tensors(SIZES, prefix="layers.0")
    forge = SIZES.config(
        draft_vocab_size=SIZES.W,
        eagle_config={"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
        num_aux_hidden_states=3,
    )
    library = speculators_config(
        SIZES,
        "eagle3",
        draft_vocab_size=SIZES.W,
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=[2, 5, 7],
    )
    for name, config in (("forge", forge), ("library", library)):
        assert torch.equal(logits_of(write_head(tmp_path / name, config, tensors)), original), name


def test_sglangs_names_of_the_norms_before_fc(tmp_path: Path) -> None:
    norms = [torch.rand(48) for _ in range(3)]
    ours = {f"fc_norm.{i}.weight": norm for i, norm in enumerate(norms)}
    theirs = {f"aux_norm_{part}.weight": norm for part, norm in zip(("low", "mid", "high"), norms, strict=True)}
    config, tensors = SIZES.config(draft_vocab_size=SIZES.W), eagle3_tensors(SIZES)
    one = logits_of(write_head(tmp_path / "a", {**config, "fc_norm": True}, {**tensors, **ours}))
    assert torch.equal(
        logits_of(write_head(tmp_path / "b", {**config, "use_aux_norm": True}, {**tensors, **theirs})), one
    )


@pytest.mark.parametrize(
    ("config", "taps"),
    [
        ({}, (2, 5, 7)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 4, 10]}, (1, 4, 10)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 9]}}, (2, 5, 10)),
        ({"target_layer_ids": [0, 3, 8]}, (1, 4, 9)),
        (
            {
                "eagle_aux_hidden_state_layer_ids": [2, 5, 8],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]},
            },
            (2, 5, 8),
        ),
    ],
    ids=["none", "the block that it enters", "SGLang: the block that it leaves", "DeepSpec", "for both programs"],
)
def test_numbers_of_target_layers(config: dict[str, Any], taps: tuple[int, ...], tmp_path: Path) -> None:
    assert head_in(write_eagle3(tmp_path, SIZES, **config)).taps == taps
    # 0-based index of the block that a state enters, and transformers' hidden_states[k]: the numbers of Drafter.taps
    assert head_in(tmp_path, target_layers=(0, 3, 9)).taps == (0, 3, 9)


def test_numbers_of_layers_that_contradict_each_other(tmp_path: Path) -> None:
    same: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [2, 5, 8]}
    write_eagle3(tmp_path, SIZES, **same, eagle_config=same)
    assert "[2, 5, 8] at the top, meaning layers [2, 5, 8]" in refusal(tmp_path)
    assert "[3, 6, 9]" in refusal(tmp_path)
    assert head_in(tmp_path, target_layers=(2, 5, 8)).taps == (2, 5, 8)


def test_a_shallow_target_whose_layers_coincide(tmp_path: Path) -> None:
    directory = write_eagle3(tmp_path, SIZES)
    assert "reads layers 2, 2, 2 of its target, and tiny has 5" in refusal(directory, layers=5)
    assert "reads layers 3, 4, 11 of its target, and tiny has 10" in refusal(directory, target_layers=(3, 4, 11))


def test_d2t_is_an_offset(tmp_path: Path) -> None:
    logits = logits_of(write_eagle3(tmp_path, SIZES))
    ids = eagle3_tensors(SIZES)["d2t"] + torch.arange(SIZES.W)
    assert sorted((logits > -torch.inf).nonzero()[:, 0].tolist()) == ids.tolist()
    assert len(logits) == SIZES.V


def test_without_d2t_all_tokens_are_known(tmp_path: Path) -> None:
    assert bool(logits_of(write_eagle3(tmp_path, WHOLE), WHOLE).isfinite().all())
    tensors = eagle3_tensors(WHOLE)
    del tensors["lm_head.weight"]
    # then the target's own output head is meant
    write_head(tmp_path / "b", WHOLE.config(tie_word_embeddings=True), tensors)
    ends = random_ends(WHOLE)
    assert load_head(tmp_path / "b", ends).head.output_head is ends.output_head


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d2t": torch.full((40,), 60)}, "d2t leads to token 99, and the target's vocabulary has 96 tokens"),
        ({"d2t": -torch.arange(40)}, "d2t leads to 1 different tokens, and there are 40 rows"),
        ({"t2d": torch.ones(96, dtype=torch.bool)}, "t2d marks 96 tokens"),
        ({"d2t": torch.zeros(40)}, "'d2t' is stored as F32"),
        ({"fc.weight": torch.zeros(48, 96)}, "'fc.weight' has shape [48, 96], but the config asks for [48, 144]"),
        ({"layers.1.mlp.up_proj.weight": torch.zeros(64, 48)}, "more than one layer"),
        ({"midlayer.self_attn.q_proj.weight_scale": torch.zeros(1)}, "weight_scale' is none that such a head has"),
        ({"mask_hidden": torch.zeros(1, 1, 144)}, "no mask_token_id or pard_token or ptd_token_id"),
        ({"fc_norm.0.weight": torch.zeros(48)}, "'fc_norm.0.weight' is none that such a head has"),
    ],
)
def test_damaged_eagle_3_heads(change: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    config = SIZES.config(draft_vocab_size=SIZES.W)
    assert message in refusal(write_head(tmp_path, config, {**eagle3_tensors(SIZES), **change}))


@pytest.mark.parametrize("missing", ["d2t", "lm_head.weight", "midlayer.input_layernorm.weight", "norm.weight"])
def test_missing_tensors(missing: str, tmp_path: Path) -> None:
    tensors = eagle3_tensors(SIZES)
    del tensors[missing]
    found = refusal(write_head(tmp_path, SIZES.config(draft_vocab_size=SIZES.W), tensors))
    assert f"tensor '{missing.replace('midlayer', 'layers.0')}' is missing" in found


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm are both true"),
        ({"norm_before_fc": True}, "'input_norm.weight' is missing"),
        ({"eagle_config": {"norm_before_fc": True}}, "'input_norm.weight' is missing"),
        ({"fc_norm": True}, "'fc_norm.0.weight' and 2 more are missing"),
        ({"attention_bias": True}, "attention_bias is true, and there is no tensor"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"hidden_act": "gelu"}, "unsupported hidden_act 'gelu'"),
        ({"num_aux_hidden_states": 5, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "is 5, and 3 layers are listed"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, "the config asks for [48, 192]"),
        ({"eagle_aux_hidden_state_layer_ids": "1,2,3"}, "not a list of layers"),
        ({"quantization_config": {"bits": 8}}, "quantized"),
    ],
)
def test_options_of_eagle_3_heads(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(write_eagle3(tmp_path, SIZES, **config))


def test_another_target(tmp_path: Path) -> None:
    write_eagle3(tmp_path, SIZES)
    assert "target of hidden size 48, and tiny has 64" in refusal(tmp_path, replace(SIZES, S=64))
    assert "target of vocabulary 96, and tiny has 100" in refusal(tmp_path, replace(SIZES, V=100))


def test_a_narrower_head_needs_its_own_embedding(tmp_path: Path) -> None:
    sizes = replace(SIZES, M=32, head_dim=8)
    tensors = eagle3_tensors(sizes)
    del tensors["embed_tokens.weight"]
    config = sizes.config(draft_vocab_size=40, target_hidden_size=48)
    assert "'embed_tokens.weight' is missing" in refusal(write_head(tmp_path, config, tensors), sizes)


def test_speculators_that_do_not_say_norm_before_residual_mean_it(tmp_path: Path) -> None:
    """A plain EAGLE-3 file that does not say means the opposite."""
    tensors = eagle3_tensors(SIZES)
    cases: dict[str, dict[str, Any]] = {
        "nothing": {},
        "yes": {"norm_before_residual": True},
        "no": {"norm_before_residual": False},
    }
    found = {
        said: logits_of(
            write_head(tmp_path / said, speculators_config(SIZES, "eagle3", draft_vocab_size=SIZES.W, **more), tensors)
        )
        for said, more in cases.items()
    }
    assert torch.equal(found["nothing"], found["yes"]) and not torch.equal(found["nothing"], found["no"])
    assert torch.equal(found["no"], logits_of(write_eagle3(tmp_path / "plain", SIZES)))


def test_a_missing_bias_key_means_a_bias(tmp_path: Path) -> None:
    """In SafeAILab's EAGLE-1; in speculators it means none."""
    head_in(write_eagle1(tmp_path / "a", SIZES, bias=True))
    without = eagle1_tensors(SIZES, bias=False)
    assert "does not say bias=false, and there is no tensor 'fc.bias'" in refusal(
        write_head(tmp_path / "b", SIZES.config(), without)
    )
    says_no = refusal(write_head(tmp_path / "c", SIZES.config(bias=False), eagle1_tensors(SIZES)))
    assert "says bias=false, and there is a tensor 'fc.bias'" in says_no
    head_in(write_head(tmp_path / "d", speculators_config(SIZES, "eagle"), without))
    spec = write_head(tmp_path / "e", speculators_config(SIZES, "eagle"), eagle1_tensors(SIZES))
    assert "fusion_bias is false, and there is a tensor 'fc.bias'" in refusal(spec)
    normed = write_head(tmp_path / "f", speculators_config(SIZES, "eagle", layernorms=True), without)
    assert "layernorms is true" in refusal(normed)


def test_files_that_contradict_the_method(tmp_path: Path) -> None:
    eagle1 = write_eagle1(tmp_path / "a", SIZES)
    assert "eagle3 is asked for, and" in refusal(eagle1, method="eagle3")
    assert "is a head of eagle (EAGLE-1/2 layout)" in refusal(eagle1, method="eagle3")
    assert "eagle is asked for, and" in refusal(write_eagle3(tmp_path / "b", SIZES), method="eagle")
    named = SIZES.config(bias=False, architectures=["LlamaForCausalLMEagle3"])
    found = refusal(write_head(tmp_path / "c", named, eagle1_tensors(SIZES, bias=False)))
    assert "names an EAGLE-3 head (LlamaForCausalLMEagle3), and the tensors are those of an EAGLE-1 head" in found
    assert "leave the option out" in refusal(eagle1, target_layers=(2, 3, 4))


def test_other_heads_are_named(tmp_path: Path) -> None:
    tensors = {"layers.0.self_attn.q_proj.weight": torch.zeros(48, 48)}
    write_head(tmp_path / "a", {"architectures": ["DFlashDraftModel"]}, tensors)
    found = refusal(tmp_path / "a")
    assert "DFlashDraftModel" in found and "speculators, P-EAGLE, EAGLE-3, EAGLE-1/2" in found
    write_head(tmp_path / "b", speculators_config(SIZES, "xpress"), tensors)
    assert "speculators_model_type is 'xpress'" in refusal(tmp_path / "b")


def test_only_pickles(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES.config()))
    torch.save({}, tmp_path / "pytorch_model.bin")
    found = refusal(tmp_path)
    assert "has only pickle weights (pytorch_model.bin)" in found
    assert f"task=convert_draft_head task.input={tmp_path} task.output=" in found


def test_an_embedding_like_the_targets_is_held_once(tmp_path: Path) -> None:
    ends, tensors = random_ends(SIZES), eagle1_tensors(SIZES)
    for name, embedding_VM in (("same", ends.embedding.weight_VM), ("other", torch.randn(96, 48))):
        write_head(tmp_path / name, SIZES.config(), {**tensors, "embed_tokens.weight": embedding_VM})
        assert (load_head(tmp_path / name, ends).head.embedding is ends.embedding) == (name == "same")


def test_a_target_of_another_name_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = speculators_config(SIZES, "eagle3", draft_vocab_size=SIZES.W)
    write_head(tmp_path, config, eagle3_tensors(SIZES))
    head_in(tmp_path)
    assert not capsys.readouterr().err
    config["speculators_config"]["verifier"]["name_or_path"] = "meta-llama/Llama-3.1-8B"
    write_head(tmp_path, config, eagle3_tensors(SIZES))
    head_in(tmp_path)
    assert "trained for meta-llama/Llama-3.1-8B; the target is tiny" in capsys.readouterr().err
