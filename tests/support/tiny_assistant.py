"""A random assistant of the tiny Gemma 4 whose last layers share K and V, written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig, PreTrainedModel

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.assistant.from_gguf import ARCHITECTURE
from spec_sdk.model.assistant.settings import read_settings
from spec_sdk.model.config_fields import Fields
from tests.checkpoints.gguf_gemma4 import add_gemma4
from tests.support.tiny_checkpoints import GEMMA4, SHAPE, VOCABULARY

TARGET = "gemma4_small"
CLUSTERED: dict[str, Any] = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 4}
TEXT: dict[str, Any] = {
    **SHAPE,
    **GEMMA4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "num_kv_shared_layers": 4,
    "vocab_size_per_layer_input": 0,
}


def write_assistant(directory: Path, seed: int = 5, text: dict[str, Any] | None = None, **options: Any) -> Any:
    """Save one into ``directory``; return the model."""
    # transformers 5.23 makes none whose layers all share K and V
    modes = property(lambda self: ["reuse"] * self.num_hidden_layers)
    with mock.patch.object(Gemma4TextConfig, "kv_sharing_modes", modes):
        config = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**{**TEXT, **(text or {})}),
            backbone_hidden_size=SHAPE["hidden_size"],
            **options,
        )
        torch.manual_seed(seed)
        made = Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").float().eval()
    _randomise(made)
    made.save_pretrained(directory)
    return made


def write_gguf_assistant(path: Path, model: Any, kind: str = "F32") -> None:
    """The same model as llama.cpp's converter writes it, matrices stored as ``kind``; clusters are left out."""
    config = model.config.get_text_config()
    config.allow_global_per_layer_attribute_access = True
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_uint32(f"{ARCHITECTURE}.embedding_length_out", model.config.backbone_hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_nextn_predict_layers(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    add_gemma4(writer, config)
    own = read_settings(Fields(json.loads(model.config.to_json_string(use_diff=False)), "tests")).config
    table, ends = weights_of(own), ("pre_projection.weight", "post_projection.weight")
    for name, tensor in model.state_dict().items():
        if name not in table.shapes and name not in ends:
            continue
        values, matrix = tensor.numpy(), tensor.dim() > 1 and kind != "F32"
        dtype = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(values, dtype) if matrix else values
        stored = f"nextn.{name}" if name in ends else table.gguf_name(name)
        writer.add_tensor(stored, data, raw_dtype=dtype if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _randomise(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
            if name.endswith("q_norm.weight"):
                parameter.mul_(0.25)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(0.7 + 0.2 * torch.rand_like(buffer))
            if name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(VOCABULARY))
