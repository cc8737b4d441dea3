"""Qwen 3.5's prediction module, among the tensors of its published checkpoints: its layer against transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

from spec_sdk.model.architectures import read_config
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of
from tests.support.tiny_checkpoints import DELTA_NETS, SHAPE, tiny_tokenizer, write_checkpoint
from tests.support.tiny_heads import write_head
from tests.support.tiny_mtp import load_module

NORMS = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def module_parts(seed: int) -> tuple[Any, dict[str, Any]]:
    """transformers' configuration of the text model, and the parts of a module, in float64."""
    config = Qwen3_5TextConfig(**{**SHAPE, **DELTA_NETS, "layer_types": ["full_attention"], "num_hidden_layers": 1})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    M = config.hidden_size
    parts: dict[str, Any] = {
        "layers.0": Qwen3_5DecoderLayer(config, 0),
        "fc": torch.nn.Linear(2 * M, M, bias=False),
        **{name: Qwen3_5RMSNorm(M, config.rms_norm_eps) for name in NORMS},
    }
    with torch.no_grad():
        for part in parts.values():
            for parameter in part.double().parameters():
                parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 2 * M**-0.5))
    return config, parts


def module_tensors(parts: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        f"mtp.{name}.{kind}": tensor.float().contiguous()
        for name, part in parts.items()
        for kind, tensor in part.state_dict().items()
    }


def test_the_layer_is_transformers(tmp_path: Path) -> None:
    config, parts = module_parts(0)
    for part in parts.values():
        part.float().double()
    directory = write_head(tmp_path, config.to_dict(), module_tensors(parts))
    embedding_VM, head_VM = torch.randn(2, config.vocab_size, config.hidden_size, dtype=torch.float64)
    final_M = 1 + 0.2 * torch.randn(config.hidden_size, dtype=torch.float64)
    target = read_config({**config.to_dict(), "num_hidden_layers": 4, "layer_types": None}, "tests")
    ends = TargetEnds("tiny", 4, config.vocab_size, Embedding(embedding_VM), final_M, Projection(head_VM), target)
    session = DraftHeadSession(load_module(directory, ends))
    tokens, state_NM = torch.randint(96, (7,)), torch.randn(7, config.hidden_size, dtype=torch.float64)
    features_NM = session.head.features({4: state_NM})
    (root,) = session.feed_pairs([0], [tokens.tolist()], [features_NM])

    with torch.no_grad():
        pair = parts["pre_fc_norm_embedding"](embedding_VM[tokens]), parts["pre_fc_norm_hidden"](features_NM)
        x_1NM = parts["fc"](torch.cat([part.double() for part in pair], -1))[None]
        angles = Qwen3_5TextRotaryEmbedding(config)(x_1NM, torch.arange(7)[None])
        mask = torch.full((7, 7), float("-inf"), dtype=torch.float64).triu(1)[None, None]
        y_1NM = parts["layers.0"](x_1NM, position_embeddings=angles, attention_mask=mask)
        wanted_V = parts["norm"](y_1NM[0, -1]).double() @ head_VM.T
    # transformers' norms and angles are in float32
    torch.testing.assert_close(root.full_KV[0], wanted_V, rtol=1e-4, atol=1e-4)


def test_a_published_checkpoint_drafts_for_itself(tmp_path: Path) -> None:
    """The checkpoint holds a text model as part of a larger one, and the module beside it."""
    directory = tmp_path / "whole"
    directory.mkdir()
    write_checkpoint(directory, "qwen3_5", tie_word_embeddings=False)
    said, path = directory / "config.json", directory / "model.safetensors"
    text = json.loads(said.read_text())
    said.write_text(json.dumps({"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}))
    own = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in load_file(path).items()}
    save_file({**own, **module_tensors(module_parts(1)[1])}, path, metadata={"format": "pt"})
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    plain = answers(pipeline_of(directory, "pipeline=vanilla"), 1, PROMPTS)
    for pipeline in ("pipeline=mtp_chain", "pipeline=suffix"):
        assert answers(pipeline_of(directory, pipeline), 2, PROMPTS) == plain


def test_a_qwen_3_next_drafts_for_itself(tmp_path: Path) -> None:
    """Its module has a mixture of experts; here it is the copy of a layer."""
    directory = tmp_path / "next"
    directory.mkdir()
    write_checkpoint(directory, "qwen3_next", tie_word_embeddings=False)
    path, layer = directory / "model.safetensors", "model.layers.2."
    own, torso = load_file(path), {"fc": torch.randn(48, 96) / 10, **{name: torch.zeros(48) for name in NORMS}}
    copied = {name.replace(layer, "mtp.layers.0."): tensor for name, tensor in own.items() if name.startswith(layer)}
    assert any(".experts." in name for name in copied)
    module = {**copied, **{f"mtp.{name}.weight": tensor for name, tensor in torso.items()}}
    save_file({**own, **{name: tensor.clone() for name, tensor in module.items()}}, path, metadata={"format": "pt"})
    plain = answers(pipeline_of(directory, "pipeline=vanilla"), 1, PROMPTS)
    assert answers(pipeline_of(directory, "pipeline=mtp_chain"), 2, PROMPTS) == plain
