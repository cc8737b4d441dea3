"""Ministral 3, and Mistral models that see: what a config leaves out, the longest context, the text in a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import read_config
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.support.tiny_checkpoints import ARCHITECTURES, SHAPE, tiny_tokenizer

SIZES = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
TOKENS = list(range(3, 63))


def read(**values: Any) -> ModelConfig:
    return read_config(
        {"model_type": "ministral3", "max_position_embeddings": 262144, **SIZES, **values}, "config.json"
    )


def test_what_a_config_leaves_out() -> None:
    """Is what transformers takes."""
    ours, theirs = read(), CONFIG_MAPPING["ministral3"](**SIZES)
    assert (ours.num_kv_heads, ours.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert (ours.rms_norm_eps, ours.windows) == (theirs.rms_norm_eps, ())
    scaling, rope = ours.rope_scaling, theirs.rope_parameters
    assert scaling is not None and ours.rope_theta == rope["rope_theta"]
    original = rope["original_max_position_embeddings"]
    assert (scaling.factor, scaling.original_max_position) == (rope["factor"], original)
    assert scaling.attention_factor == 1.0


def test_the_longest_context_is_that_where_queries_do_not_grow() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
    for beta, longest in ((0.1, 16384), (0.0, 262144), (None, 262144)):
        for spelling in ("rope_parameters", "rope_scaling"):
            config = read(**{spelling: {**yarn, "llama_4_scaling_beta": beta}})
            assert config.max_context == config.longest_context == longest


@pytest.mark.parametrize(
    ("kind", "found"),
    [("mistral", "mistral"), ("ministral3", "ministral3"), ("mistral4", "mistral4"), (None, "mistral")],
)
def test_the_text_of_a_model_that_sees(kind: str | None, found: str) -> None:
    text = {**SIZES, "max_position_embeddings": 8192, **({} if kind is None else {"model_type": kind})}
    config = read_config({"model_type": "mistral3", "text_config": text, "eos_token_id": 2}, "config.json")
    assert (config.architecture, config.prefix, config.eos_token_ids) == (found, "language_model.", (2,))


def test_texts_that_a_mistral_has_not() -> None:
    for kind in ("qwen3", "nonsense"):
        text = {**SIZES, "max_position_embeddings": 8192, "model_type": kind}
        with pytest.raises(UserError, match=f"text of a mistral3 is mistral or ministral3 or mistral4, not '{kind}'"):
            read_config({"model_type": "mistral3", "text_config": text}, "config.json")


def test_a_window_is_of_all_layers() -> None:
    """Whatever types they are given, which transformers does not read here."""
    assert read(sliding_window=64, layer_types=["full_attention"] * 2).windows == (64, 64)


@pytest.mark.parametrize("kind", ["mistral_sliding", "ministral3", "mistral4"])
def test_a_checkpoint_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    model_type, own = copy.deepcopy(ARCHITECTURES[kind])
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CONFIG_MAPPING["mistral3"](
        text_config={"model_type": model_type, **SHAPE, **own},
        vision_config={"model_type": "pixtral", **vision, "head_dim": 8, "image_size": 28, "patch_size": 14},
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    reference = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(2.0)
    reference.save_pretrained(tmp_path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    checkpoint = open_checkpoint(str(tmp_path))
    assert all(name.startswith("language_model.") for name in checkpoint.names())
    with torch.inference_mode():
        expected_NV = reference(input_ids=torch.tensor([TOKENS])).logits[0]
    executor = TorchExecutor(load_decoder(checkpoint, torch.device("cpu"), torch.float32), Ops())
    ours_NV = Session(executor).score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV
    assert (ours_NV - expected_NV).abs().max() < 1e-4 * expected_NV.abs().max()
