"""Tiny random checkpoints in Hugging Face layout, written by transformers: the reference for our decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama3": ("llama", {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3_ROPE}}),
    "linear_rope": ("llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}}),
    "smollm": ("llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}),
    "biased_llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral_sliding": ("mistral", {"sliding_window": 24, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 3, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
    ),
}
"""Name → model_type and what differs from SHAPE."""


def random_model(name: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random transformers model of one of ARCHITECTURES, in float32. Biases and norm gains are random too."""
    model_type, differences = ARCHITECTURES[name]
    config = CONFIG_MAPPING[model_type](**{**SHAPE, **differences, **overrides})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
    return model


def tiny_tokenizer() -> Tokenizer:
    """A byte-less word-level tokenizer of VOCABULARY tokens: <pad>, <s>, </s>, then letters and numbered words."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    return tokenizer


def write_checkpoint(directory: Path, name: str = "smollm", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Save a random model and the tiny tokenizer into ``directory``; return the model."""
    model = random_model(name, seed, **overrides)
    model.save_pretrained(directory)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return model
