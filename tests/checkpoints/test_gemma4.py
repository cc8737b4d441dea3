"""Gemma 4's config.json in all its spellings, its text within what sees and hears, and some of its layers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.models.gemma4 import Gemma4Config, Gemma4ForConditionalGeneration
from transformers.models.gemma4_unified import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import GlobalHeads, ModelConfig, Rope, RopeScaling
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.model.varied_decoder import VariedDecoder
from spec_sdk.ops import Ops
from spec_sdk.testing.random_weights import RandomWeights
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import ARCHITECTURES, SHAPE, VOCABULARY, tiny_tokenizer, write_checkpoint

CPU = torch.device("cpu")
TOKENS = list(range(3, 63))
SLIDES, WHOLE = "sliding_attention", "full_attention"
MINIMAL: dict[str, Any] = {
    **SHAPE,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
}
SHARING = {"num_hidden_layers": 8, "layer_types": [SLIDES, SLIDES, WHOLE, WHOLE, SLIDES, WHOLE, SLIDES, WHOLE]}
INFORMED = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY}


def read(**changes: Any) -> ModelConfig:
    values = {key: value for key, value in {**MINIMAL, **changes}.items() if value is not ...}
    return read_config(values, "config.json")


def logits_of(source: TensorSource) -> torch.Tensor:
    session = Session(TorchExecutor(load_decoder(source, CPU, torch.float32), Ops()))
    return session.score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV


def assert_logits_are(reference: PreTrainedModel, path: Path) -> None:
    with torch.inference_mode():
        expected_NV = reference(input_ids=torch.tensor([TOKENS])).logits[0]
    assert (logits_of(open_checkpoint(str(path))) - expected_NV).abs().max() < 1e-4
    assert expected_NV.std() > 0.1


def test_what_it_says_of_layers_without_a_window() -> None:
    """As published, and as transformers 5.10 and later writes it."""
    config = read(attention_k_eq_v=True, num_global_key_value_heads=3)
    assert config.windows == (512, 512, 512, 512, 512, None)
    assert config.global_heads == GlobalHeads(3, 32, True)
    assert config.global_rope == Rope(1e6, None, 8, proportional=True) and config.windowed_rope == Rope(1e4)
    own = {"head_dim": 32, "num_key_value_heads": 3}
    assert read(attention_k_eq_v=True, global_head_dim=..., per_layer_config={"5": own}) == config
    # what is said of single layers holds whatever makes V
    apart = read(global_head_dim=..., per_layer_config={"5": own})
    assert apart.global_heads == GlobalHeads(3, 32) and apart.heads_of(0) == (2, 16)
    assert read(num_global_key_value_heads=3).global_heads == GlobalHeads(2, 32), "is for those without V alone"
    assert read(global_head_dim=...).global_heads == GlobalHeads(2, 512)


def test_positions_that_are_stretched() -> None:
    stretched = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5e5, "factor": 8.0}
    rope = read(rope_parameters={WHOLE: stretched, SLIDES: {"rope_theta": 1e4}}).global_rope
    assert rope is not None and rope.dims == 16 and rope.theta == 5e5
    assert rope.scaling == RopeScaling("linear", 8.0, original_max_position=512, context=512)
    plain = read(rope_parameters={WHOLE: {"rope_type": "default", "rope_theta": 5e5}, SLIDES: {}})
    assert plain.global_rope == Rope(5e5)


def test_a_unified_text_is_told_nothing_of_its_own() -> None:
    values = {**MINIMAL, "model_type": "gemma4_unified_text", "hidden_size_per_layer_input": None}
    del values["max_position_embeddings"], values["hidden_size_per_layer_input"]
    config = read_config(values, "config.json")
    assert config.layer_inputs is None and config.max_context == 262144 and config.windows[0] == 1024
    assert read_config({**values, **INFORMED}, "config.json").layer_inputs is not None


@pytest.mark.parametrize("said", [None, False, "vision"])
def test_tokens_of_pictures_alone_may_see_later_ones(said: object) -> None:
    assert read(use_bidirectional_attention=said) == read()


def test_layers_attend_to_the_last_of_their_kind() -> None:
    assert read(**SHARING, num_kv_shared_layers=4).kv_sources == (0, 1, 2, 3, 1, 3, 1, 3)
    assert read(**SHARING, num_kv_shared_layers=3, use_double_wide_mlp=True).wide_mlps == (5, 6, 7)
    assert read(**SHARING, use_double_wide_mlp=True).wide_mlps == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "attention to later tokens .use_bidirectional_attention=all."),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5 of 6 layers, so that layer 5 has none of its kind"),
        ({"num_kv_shared_layers": 9}, "num_kv_shared_layers is 9 of 6 layers, so that layer 0 has none"),
        ({"global_head_dim": 33}, "global_head_dim is 33, rotary positions need an even one"),
        (
            {"attention_k_eq_v": True, "num_global_key_value_heads": 4},
            "6 attention heads do not divide into 4 key-value heads",
        ),
        (
            {"per_layer_config": {"0": {"head_dim": 32}}},
            "per_layer_config: differs between the layers of full_attention",
        ),
        ({"per_layer_config": {"5": {"sliding_window": 8}}}, "sliding_window of single layers is not supported"),
        (
            {"layer_types": [WHOLE] * 6, "per_layer_config": {"0": {"head_dim": 32}, "1": {"head_dim": 16}}},
            "differs between the layers",
        ),
        ({**INFORMED, "vocab_size_per_layer_input": 90}, "vocab_size_per_layer_input is 90, less than vocab_size, 96"),
        (
            {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8},
            "top_k_experts is 5, and there are 4 experts",
        ),
        ({"enable_moe_block": True}, "no num_experts"),
        (
            {"rope_parameters": {WHOLE: {"rope_type": "proportional", "partial_rotary_factor": 1.5}, SLIDES: {}}},
            "partial_rotary_factor rotates 48 of a head's 32",
        ),
        (
            {"rope_parameters": {WHOLE: {}, SLIDES: {"partial_rotary_factor": 0.5}}},
            "partial rotary positions",
        ),
        ({"hidden_activation": "silu"}, "unsupported activation 'silu'"),
    ],
    ids=str,
)
def test_what_is_not_computed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(**changes)


TOWERS: dict[str, Any] = {
    "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "audio_config": None,
}


@pytest.mark.parametrize("name", ["gemma4", "gemma4_small", "gemma4_moe", "unified"])
def test_the_text_of_what_sees(name: str, tmp_path: Path) -> None:
    """Its towers are left out."""
    torch.manual_seed(0)
    if name == "unified":
        text = {**SHAPE, **ARCHITECTURES["gemma4"][1]}
        del text["hidden_size_per_layer_input"]
        made: Any = Gemma4UnifiedConfig(text_config=text, vision_config=None, audio_config=None)
        reference: Any = Gemma4UnifiedForConditionalGeneration(made)
    else:
        made = Gemma4Config(text_config={**SHAPE, **ARCHITECTURES[name][1]}, **TOWERS)
        reference = Gemma4ForConditionalGeneration(made)
    with torch.no_grad():
        for key, parameter in reference.named_parameters():
            if key.endswith("q_norm.weight"):
                parameter.mul_(0.25)
            elif parameter.dim() > 1:
                parameter.normal_(std=0.2)
    reference.eval().save_pretrained(tmp_path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.config.architecture == ("gemma4_unified" if name == "unified" else "gemma4")
    assert all(key.startswith("model.language_model.") for key in checkpoint.names())
    assert_logits_are(reference, tmp_path)


def test_tensors_that_no_layer_makes_use_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Published checkpoints hold what makes K and V of layers that attend to others', and nobody is told."""
    reference = write_checkpoint(tmp_path, "gemma4_small")
    (path,) = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    for layer, dim in ((5, 32), (6, 16), (7, 32)):
        block = f"model.layers.{layer}.self_attn"
        for part in ("k", "v"):
            tensors[f"{block}.{part}_proj.weight"] = torch.randn(2 * dim, SHAPE["hidden_size"])
        tensors[f"{block}.k_norm.weight"] = torch.randn(dim)
    save_file(tensors, path, metadata={"format": "pt"})
    capsys.readouterr()
    assert_logits_are(reference, tmp_path)
    said = capsys.readouterr()
    assert not said.err and not said.out
    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}, path, metadata={"format": "pt"})
    assert open_checkpoint(str(tmp_path)).unread, "others are told of"


def test_layers_whose_source_is_left_out() -> None:
    """They attend to the last one of its kind before it that there is."""
    source = RandomWeights(read(**SHARING, **INFORMED, num_kv_shared_layers=4, use_double_wide_mlp=True), 0)
    whole = load_decoder(source, CPU, torch.float32)
    assert isinstance(whole, VariedDecoder)
    for layers, sources in (([0, 2, 4, 7], (0, 1, 0, 1)), ([1, 3, 4, 5], (0, 1, 0, 1)), ([0, 1], (0, 1))):
        part = whole.subset(layers)
        own = source.config.of_layers(layers)
        assert own.kv_sources == sources
        cut = TorchExecutor(part, Ops())
        found_NV = Session(cut).score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV
        assert torch.equal(found_NV, logits_of(LayersOf(source, layers)))
        again = whole.subset([layers[0], layers[1], *range(layers[1] + 1, 8)]).subset([0, 1])
        assert again.sources == tuple(layers[:2])
    turns = {"layer_types": [WHOLE, SLIDES, WHOLE, SLIDES, SLIDES, WHOLE]}
    assert read(**turns, num_kv_shared_layers=2).of_layers([1, 2, 4]).kv_sources == (0, 1, 0)
    for layers in ([3, 4], [5]):
        with pytest.raises(
            UserError, match=r"layer \d attends to K and V of layer \d, so that it cannot be run without"
        ):
            whole.subset(layers)


def test_caches_are_of_the_layers_that_have_k_and_v() -> None:
    decoder = load_decoder(RandomWeights(read(**SHARING, num_kv_shared_layers=4), 0), CPU, torch.float32)
    cache = decoder.new_cache()
    cache.reserve(1, 16)
    rows = 2 * cache.slots * cache.capacity
    # two layers of two heads of 16, two of 32
    assert cache.nbytes == 4 * rows * (2 * 2 * 16 + 2 * 2 * 32)


def test_it_counts_its_numbers() -> None:
    """Of a layer: attention's matrices, an MLP twice as wide, and what is made of its own input."""
    config = read(**SHARING, **INFORMED, num_kv_shared_layers=4, use_double_wide_mlp=True)
    M = SHAPE["hidden_size"]
    own, shared = config.layer_parameters[0], config.layer_parameters[7]
    assert own == M * 16 * (6 + 2 + 2 + 6) + 3 * M * SHAPE["intermediate_size"] + 3 * M * 8
    assert shared == M * 32 * (6 + 6) + 3 * M * 2 * SHAPE["intermediate_size"] + 3 * M * 8
