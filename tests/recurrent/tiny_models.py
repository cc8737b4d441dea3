"""Tiny models with recurrent layers, of random weights."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.architectures import read_config
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.testing.random_weights import RandomWeights

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    },
    "tiled": {
        "model_type": "qwen3_5_text",
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "linear_value_heads_tiled": True,
    },
    "granite": {
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
    },
    "falcon_h1": {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 48,
        "mamba_n_heads": 4,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "ssm_multipliers": [0.5, 0.8, 0.7, 0.6, 0.9],
        "mlp_multipliers": [0.9, 0.6],
        "attention_out_multiplier": 0.8,
        "key_multiplier": 0.5,
    },
    "nemotron_h": {
        "model_type": "nemotron_h",
        "num_hidden_layers": 6,
        "hybrid_override_pattern": "M-MM*-",
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
    },
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
}


def config_of(name: str, **values: Any) -> ModelConfig:
    return read_config({**COMMON, **MODELS[name], **values}, "tests")


def tiny_session(name: str, seed: int = 0, **values: Any) -> Session:
    """In float64, so that nothing but an error tells two computations of one thing apart."""
    weights = RandomWeights(config_of(name, **values), seed)
    return Session(TorchExecutor(load_decoder(weights, torch.device("cpu"), torch.float64), Ops()))
