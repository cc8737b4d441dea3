"""An EAGLE-3 head of random weights for a model of random weights, as a directory that ``drafter.checkpoint`` names.

Legend: M model dim, W draft vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from spec_sdk.bench.random_models import hf_fields

TAPPED = 3
MOST_DRAFTED = 32_000
"""Tokens that published heads of models with large vocabularies draft."""


def read_by_head(shape: str) -> list[int]:
    """The layers whose states it reads: an early one, the middle one and a late one, of a target of any depth."""
    layers = hf_fields(shape)["num_hidden_layers"]
    return [layers // 8, layers // 2, layers - layers // 8]


def write_random_head(directory: Path, shape: str, device: torch.device, dtype: torch.dtype) -> Path:
    """A layer as wide as the target's, in SafeAILab's layout."""
    fields = hf_fields(shape)
    M, middle, vocabulary = fields["hidden_size"], fields["intermediate_size"], fields["vocab_size"]
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    head_dim, W = M // heads, min(MOST_DRAFTED, vocabulary // 2)
    of_layer = {
        "self_attn.q_proj": (heads * head_dim, 2 * M),
        "self_attn.k_proj": (kv_heads * head_dim, 2 * M),
        "self_attn.v_proj": (kv_heads * head_dim, 2 * M),
        "self_attn.o_proj": (M, heads * head_dim),
        "mlp.gate_proj": (middle, M),
        "mlp.up_proj": (middle, M),
        "mlp.down_proj": (M, middle),
    }
    shapes = {f"midlayer.{name}.weight": size for name, size in of_layer.items()}
    shapes |= {"fc.weight": (M, TAPPED * M), "lm_head.weight": (W, M)}
    generator = torch.Generator(device).manual_seed(0)
    tensors = {
        name: torch.randn(size, device=device, dtype=dtype, generator=generator).mul_(0.02).cpu()
        for name, size in shapes.items()
    }
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    tensors |= {f"{name}.weight": torch.ones(M, dtype=dtype) for name in norms}
    tensors["d2t"] = torch.zeros(W, dtype=torch.int64)
    tensors["t2d"] = torch.arange(vocabulary) < W
    config = {
        **fields,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": W,
        "target_hidden_size": M,
        "rms_norm_eps": 1e-5,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, directory / "model.safetensors")
    return directory
