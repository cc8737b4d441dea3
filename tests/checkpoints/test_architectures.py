"""The tables of weights: whole, named as transformers and llama.cpp name them, and all that a new family needs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model import architectures
from spec_sdk.model.architectures import families, read_config, weights_of
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.family import Family
from spec_sdk.model.layers_of import LayersOf
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.shards import ShardedSource
from spec_sdk.model.varied_loading import GLOBAL, WIDE
from tests.checkpoints.gguf_files import gguf_architecture, write_gguf
from tests.support import families as test_families
from tests.support.tiny_checkpoints import ARCHITECTURES, checkpoint_tensors, random_model, write_checkpoint
from tests.support.tiny_decoder import ModelTensors, tiny_decoder
from tests.support.tiny_ranks import ranks_at

CPU = torch.device("cpu")
TOY_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.o_proj": "mixer.out",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "lm_head": "classifier",
}


class Counted(ModelTensors):
    """A source that notes what is read of it."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.read: list[str] = []

    def tensor(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return super().tensor(name)


def test_every_architecture_is_there_once() -> None:
    model_types = [name for family in families() for name in family.model_types]
    gemmas, moes = (
        ["gemma", "gemma2", "gemma3", "gemma4"],
        ["mixtral", "qwen2_moe", "qwen3_moe", "ernie4_5_moe", "glm4_moe"],
    )
    norms_after = ["olmo2", "olmoe", "exaone4"]
    others = [
        "gemma3_text",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "gpt_oss",
        "ministral3",
        "mistral3",
        "llama",
        "mimo",
        "mistral",
        "qwen2",
        "qwen3",
        "whisper",
    ]
    recurrent = ["lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"]
    recurrent += ["granitemoehybrid", "falcon_h1", "nemotron_h"]
    latents = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4", "youtu"]
    nearly_llamas = ["ernie4_5", "glm4", "granite", "granitemoe", "dots1", "phi3", "seed_oss", "smollm3"]
    dense = [*gemmas, *others, *nearly_llamas, *norms_after, "olmo3", "glm"]
    assert sorted(model_types) == sorted([*dense, *moes, *recurrent, *latents])
    # Mixtral is a llama there
    gguf_moes = ["qwen2moe", "qwen3moe", "ernie4_5-moe", "glm4moe"]
    gguf_recurrent = ["granitehybrid", "lfm2", "lfm2moe", "qwen35", "qwen35moe", "qwen3next"]
    gguf_recurrent += ["falcon-h1", "nemotron_h", "nemotron_h_moe"]
    ggufs = sorted(name for family in families() for name in family.gguf_architectures)
    assert ggufs == sorted(
        [
            *("deepseek2", "mistral4", "gpt-oss", "llama", "mistral", "mistral3", "qwen2", "qwen3"),
            *gemmas,
            *nearly_llamas,
            *norms_after,
            *gguf_moes,
            *gguf_recurrent,
        ]
    )


@pytest.mark.parametrize("family", families(), ids=lambda family: family.model_types[0])
def test_rows_of_a_table_differ(family: Family) -> None:
    has_gguf = bool(family.gguf_architectures)
    assert len({row.role for row in family.weights}) == len(family.weights)
    # those of Gemma 4's other layers are called alike
    own = [row for row in family.weights if not row.role.startswith((GLOBAL, WIDE))]
    for column in ("name", *["gguf"] * has_gguf):
        values = [getattr(row, column) for row in own]
        assert len(set(values)) == len(values)
    for row in family.weights:
        assert row.per_layer == ("{layer}" in row.gguf) or not has_gguf
        assert row.split is None or row.split in row.shape


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_table_has_every_tensor_in_its_shape(name: str) -> None:
    model = random_model(name)
    config = read_config(model.config.to_dict(), "tests")
    tied = {"lm_head.weight"} if config.tie_embeddings else set()
    theirs = {key: tuple(value.shape) for key, value in checkpoint_tensors(model).items() if key not in tied}
    assert weights_of(config).shapes == theirs


def mlp_among_experts(config: ModelConfig, name: str) -> bool:
    row, layer, _ = weights_of(config).entry(name)
    return config.experts is not None and row.role in ("gate", "up", "down") and layer not in config.experts.layers


# Granite 4 is a Granite there
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "granite4"])
def test_gguf_names_are_llama_cpps(name: str) -> None:
    model = random_model(name)
    config, wanted = read_config(model.config.to_dict(), "tests"), gguf_architecture(model.config)
    table = weights_of(config)
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == wanted)
    theirs = gguf.get_tensor_name_map(architecture, config.num_layers)
    names = {key: table.gguf_name(key) for key in table.shapes}
    # llama.cpp has no Qwen in which only some layers have experts
    names = {key: value for key, value in names.items() if not mlp_among_experts(config, key)}
    # its converter merges the experts of a layer, and only then looks the name up
    merged = {key: re.sub(r"experts\.\d+\.", "experts.", key) for key in names}
    # and it takes a correction for a bias, and that of a delta net's steps for a module's
    merged = {key: re.sub(r"_correction_bias$", "_correction.bias", value) for key, value in merged.items()}
    merged = {key: re.sub(r"\.dt_bias$", ".dt_proj.bias", value) for key, value in merged.items()}
    merged = {key: re.sub(r"\.expert_bias$", ".expert_bias.bias", value) for key, value in merged.items()}
    # of LFM2 it looks merged experts up without the model
    merged = {key: re.sub(r"^model\.(.*feed_forward\.experts)", r"\1", value) for key, value in merged.items()}
    merged = {
        key: re.sub(r"^backbone(.*)\.mixer\.experts", r"model\1.mlp.experts", value) for key, value in merged.items()
    }
    # sinks are no module's weight, until it names them so
    merged = {key: re.sub(r"\.sinks$", ".sinks.weight", value) for key, value in merged.items()}
    joined = [key for key in names if table.entry(key).row.gguf_packing is not None]
    # Qwen 3 Next's large matrix is taken apart, and its parts named as Qwen 3.5's
    merged |= {key: table.packed(key)[0].name.replace("in_proj_qkvz", "in_proj_qkv") for key in joined}
    # what Gemma 4 has no module for is a weight there, too
    merged = {key: re.sub(r"(layer_scalar|gate_up_proj)$", r"\1.weight", value) for key, value in merged.items()}
    # and its scales are beside other weights
    merged = {key: re.sub(r"router\.scale$", "router.proj.scale", value) for key, value in merged.items()}
    merged = {
        key: re.sub(r"router\.per_expert_scale$", "experts.down_proj.scale", value) for key, value in merged.items()
    }
    assert names == {key: theirs.get_name(merged[key], try_suffixes=(".weight", ".bias", ".scale")) for key in names}
    assert len(set(names.values())) == len(set(merged.values()))
    assert set(names.values()) <= table.gguf_shapes.keys()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_decoder_is_made_of_every_tensor_once(name: str) -> None:
    source = Counted(name, 0)
    load_decoder(source, CPU, torch.float32)
    assert sorted(source.read) == sorted(weights_of(source.config).shapes)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_weight_that_the_model_lacks_is_a_key_error(name: str) -> None:
    config = read_config(random_model(name).config.to_dict(), "tests")
    table = weights_of(config)
    assert ("q_bias" in table, "o_bias" in table) == (config.qkv_bias, config.o_bias)
    assert ("q_norm" in table, "head" in table) == (config.qk_norm, not config.tie_embeddings)
    beyond = f"model.layers.{config.num_layers}.input_layernorm.weight"
    for look_up in (
        lambda: table.name("gatekeeper"),
        lambda: table.shape("gatekeeper"),
        lambda: table.entry(beyond),
        lambda: table.gguf_name(beyond),
    ):
        with pytest.raises(KeyError):
            look_up()


@pytest.fixture
def toylm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file among the architectures."""
    monkeypatch.setattr(architectures, "__path__", [*architectures.__path__, *test_families.__path__])
    families.cache_clear()
    yield
    monkeypatch.undo()
    families.cache_clear()
    sys.modules.pop(f"{architectures.__name__}.toylm", None)


def toy_name(name: str) -> str:
    for theirs, ours in TOY_NAMES.items():
        name = name.replace(theirs, ours)
    return name


def write_toylm(directory: Path, model_type: str = "toylm") -> None:
    """The tiny Llama with biases, as a model of the new family."""
    write_checkpoint(directory, "biased_llama", tie_word_embeddings=False)
    weights, config = directory / "model.safetensors", directory / "config.json"
    save_file({toy_name(name): tensor for name, tensor in load_file(weights).items()}, weights)
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": model_type}))


def assert_same_weights(ours: Decoder, theirs: Decoder) -> None:
    assert ours.layers == theirs.layers
    for a, b in zip(ours.blocks, theirs.blocks, strict=True):
        assert a.input_norm_M is not None and b.input_norm_M is not None
        assert a.post_norm_M is not None and b.post_norm_M is not None
        assert torch.equal(a.input_norm_M, b.input_norm_M) and torch.equal(a.post_norm_M, b.post_norm_M)
        linears = (block.projections for block in (a, b))
        for x, y in zip(*linears, strict=True):
            assert torch.equal(x.weight_OI, y.weight_OI)
            assert (x.bias_O is None) == (y.bias_O is None)
            assert x.bias_O is None or torch.equal(x.bias_O, y.bias_O)
    assert torch.equal(ours.embedding.weight_VM, theirs.embedding.weight_VM)
    assert torch.equal(ours.final_norm_M, theirs.final_norm_M)
    assert torch.equal(ours.output_head.weight_OI, theirs.output_head.weight_OI)


@pytest.mark.usefixtures("toylm")
@pytest.mark.parametrize("model_type", ["toylm", "toylm2"])
def test_a_new_family_is_one_file(model_type: str, tmp_path: Path) -> None:
    write_toylm(tmp_path / "toy", model_type)
    checkpoint = open_checkpoint(str(tmp_path / "toy"))
    llama = ModelTensors("biased_llama", 0, tie_word_embeddings=False)
    assert checkpoint.config.architecture == model_type
    assert checkpoint.names() == {toy_name(name) for name in llama.names()}
    assert_same_weights(load_decoder(checkpoint, CPU, torch.float32), tiny_decoder("biased_llama"))
    ours, theirs = (load_decoder(LayersOf(source, [1, 3]), CPU, torch.float32) for source in (checkpoint, llama))
    assert_same_weights(ours, theirs)
    for number in range(2):
        place = ranks_at(number, 2)
        shards = (ShardedSource(source, place, place) for source in (checkpoint, llama))
        ours, theirs = (load_decoder(shard, CPU, torch.float32) for shard in shards)
        assert_same_weights(ours, theirs)


@pytest.mark.usefixtures("toylm")
def test_a_new_family_is_read_from_gguf(tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "llama.gguf", "biased_llama", tie_word_embeddings=False).state_dict()
    data = (tmp_path / "llama.gguf").read_bytes()
    assert data.count(b"ffn_") == 2 * 7 and b"toylm" not in data
    # names of one length, so that all offsets stay
    (tmp_path / "toy.gguf").write_bytes(data.replace(b"llama", b"toylm").replace(b"ffn_", b"mlp_"))
    ours = open_checkpoint(str(tmp_path / "toy.gguf"))
    assert ours.names() == {toy_name(name) for name in original}
    assert all(torch.equal(ours.tensor(toy_name(name)), tensor) for name, tensor in original.items())


@pytest.mark.usefixtures("toylm")
def test_a_new_family_is_among_the_names_suggested(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unsupported architecture 'toyml2', did you mean 'toylm2'"):
        read_config({"model_type": "toyml2"}, "config.json")
    write_toylm(tmp_path / "toy")
    tensors = load_file(tmp_path / "toy" / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, tmp_path / "toy" / "model.safetensors")
    with pytest.raises(UserError, match="'classifier.weight' is missing .*tie_word_embeddings=false"):
        open_checkpoint(str(tmp_path / "toy"))


def test_without_its_file_there_is_no_such_family() -> None:
    known = "deepseek_v2, .*llama, mimo, ministral3, mistral, mistral3, mistral4, mixtral, .*olmo2, olmo3, olmoe, "
    with pytest.raises(UserError, match=rf"unsupported architecture 'toylm', did you mean .*\(supported: {known}"):
        read_config({"model_type": "toylm"}, "config.json")
