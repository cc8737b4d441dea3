"""GGUF metadata as a Hugging Face config.json."""

from __future__ import annotations

import math
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3.1's rope scaling, stored by llama.cpp as one divisor per frequency [D/2]."""

_LLAMA3_LOW, _LLAMA3_HIGH = 1.0, 4.0
_LLAMA3_CONTEXTS = (8192, *(2**i for i in range(10, 20)))


def hf_config(gguf: GGUFFile) -> dict[str, Any]:
    """What the config.json of a Llama-like model would say, whatever its parts.

    Raises UserError for what the decoder cannot run or the file lacks.
    """
    where = gguf.where
    meta = Fields(gguf.metadata, where)
    architecture = meta.text("general.architecture", "")

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    for name in ("block_count", "attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(meta.get(key(name)), list):
            raise UserError(f"{where}: {key(name)} differs between layers, which is not supported")
    if meta.number(key("expert_count"), 0):
        raise UserError(f"{where}: mixture of experts ({key('expert_count')}) is not supported")
    if "token_embd.weight" not in gguf.tensors:
        raise UserError(f"{where}: has no tensor 'token_embd.weight', so it is no language model or has no weights")
    heads = meta.size(key("attention.head_count"))
    hidden = meta.size(key("embedding_length"))
    head_dim = meta.size(key("attention.key_length"), meta.size(key("rope.dimension_count"), hidden // heads))
    if meta.size(key("attention.value_length"), head_dim) != head_dim:
        raise UserError(f"{where}: keys and values of different sizes are not supported")
    if meta.size(key("rope.dimension_count"), head_dim) != head_dim:
        raise UserError(f"{where}: partial rotary positions ({key('rope.dimension_count')}) are not supported")
    return {
        "model_type": architecture,
        "vocab_size": gguf.shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": meta.size(key("feed_forward_length")),
        "num_hidden_layers": meta.size(key("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size(key("attention.head_count_kv"), heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": meta.positive(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": meta.size(key("context_length")),
        "rope_parameters": _rope(meta, key, gguf, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }


def _rope(meta: Fields, key: Any, gguf: GGUFFile, head_dim: int) -> dict[str, Any]:
    theta = meta.positive(key("rope.freq_base"), 10000.0)
    kind = meta.text(key("rope.scaling.type"), "none")
    if kind not in ("none", "linear", "llama3"):
        raise UserError(f"{gguf.where}: unsupported rope scaling '{kind}'{did_you_mean(kind, ['none', 'linear'])}")
    if ROPE_FACTORS in gguf.tensors:
        context = meta.size(key("rope.scaling.original_context_length"), _LLAMA3_CONTEXTS[0])
        scaling = _llama3_scaling(_read_factors(gguf), theta, head_dim, context)
        if scaling is None:
            raise UserError(f"{gguf.where}: the rope scaling in {ROPE_FACTORS} is not Llama 3's and not supported")
        return {"rope_theta": theta, **scaling}
    factor = meta.positive(key("rope.scaling.factor"), meta.positive(key("rope.scale_linear"), 1.0))
    if kind == "llama3":
        raise UserError(f"{gguf.where}: has Llama 3's rope scaling but no {ROPE_FACTORS}")
    if factor != 1.0 and (kind == "linear" or meta.get(key("rope.scale_linear")) is not None):
        return {"rope_theta": theta, "rope_type": "linear", "factor": factor}
    return {"rope_theta": theta, "rope_type": "default"}


def _read_factors(gguf: GGUFFile) -> list[float]:
    if gguf.tensors[ROPE_FACTORS].kind != "F32":
        raise UserError(f"{gguf.where}: {ROPE_FACTORS} is not stored as F32")
    return list(gguf.raw(ROPE_FACTORS).cast("f"))


def _llama3_scaling(factors: list[float], theta: float, head_dim: int, context: int) -> dict[str, Any] | None:
    """The llama3 parameters whose divisors are ``factors`` (to float32 accuracy), or None if there are none.

    The divisors only fix context/low and context/high, so low and high are taken to be Llama 3's 1 and 4.
    """
    if len(factors) != head_dim // 2:
        return None
    factor = max(factors)
    if all(value == 1.0 for value in factors):
        return {"rope_type": "default"}
    for candidate in (context, *_LLAMA3_CONTEXTS):
        expected = (_llama3_divisor(theta ** (2 * i / head_dim), factor, candidate) for i in range(head_dim // 2))
        if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": candidate,
            }
    return None


def _llama3_divisor(period: float, factor: float, context: int) -> float:
    """What a rotary frequency is divided by; ``period`` is its inverse, in tokens per radian."""
    wavelength = 2 * math.pi * period
    if wavelength < context / _LLAMA3_HIGH:
        return 1.0
    if wavelength > context / _LLAMA3_LOW:
        return factor
    blend = (context / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1.0 / ((1 - blend) / factor + blend)
