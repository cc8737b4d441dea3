"""What the config.json of a Gemma 4 in a GGUF file would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import gguf_layer_types
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import DIVISORS, divisors_of
from spec_sdk.model.rope_fields import PARTIAL

_STILL = 1e29
"""What divides the speed of a pair by so much, or more, keeps it from turning."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_LAYER_EMBEDDING = "per_layer_token_embd.weight"


def gemma4_config(gguf: GGUFFile, architecture: str = "gemma4") -> dict[str, Any]:
    """``architecture``: what the file calls it. Raises UserError for what the decoder cannot run or the file lacks."""
    meta = Fields(gguf.metadata, gguf.where)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    if "token_embd.weight" not in gguf.tensors:
        raise UserError(
            f"{gguf.where}: has no tensor 'token_embd.weight', so it is no language model or has no weights"
        )
    layers = meta.size(key("block_count"))
    kinds = gguf_layer_types(gguf, architecture, layers, interval=6)
    shared = meta.count(key("attention.shared_kv_layers"), 0)
    where = f"{gguf.where}: {key('attention.head_count_kv')}"
    kv_heads = _of_layers(meta, key("attention.head_count_kv"), layers)
    widths = _of_layers(meta, key("feed_forward_length"), layers)
    own = widths[: layers - shared] or widths
    wide = [2 * own[0]] * shared
    if len(set(own)) > 1 or (widths[layers - shared :] not in (wide, [own[0]] * shared)):
        raise UserError(f"{gguf.where}: {key('feed_forward_length')} is {widths}, other than any Gemma 4's")
    config: dict[str, Any] = {
        "model_type": "gemma4_text",
        "vocab_size": gguf.shapes["token_embd.weight"][0],
        "hidden_size": meta.size(key("embedding_length")),
        "intermediate_size": own[0],
        "num_hidden_layers": layers,
        "num_attention_heads": meta.size(key("attention.head_count")),
        "num_key_value_heads": _of_kind(kv_heads, kinds, _SLIDING, where),
        "num_global_key_value_heads": _of_kind(kv_heads, kinds, _FULL, where),
        "head_dim": meta.size(key("attention.key_length_swa")),
        "global_head_dim": meta.size(key("attention.key_length")),
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "rms_norm_eps": meta.positive(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": meta.size(key("context_length")),
        "sliding_window": meta.size(key("attention.sliding_window")),
        "layer_types": kinds,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": bool(shared) and widths[layers - shared :] == wide,
        "attention_k_eq_v": _values_are_keys(gguf, kinds),
        "final_logit_softcapping": gguf.metadata.get(key("final_logit_softcapping")) or None,
        "hidden_size_per_layer_input": meta.count(key("embedding_length_per_layer_input"), 0),
        "rope_parameters": _ropes(gguf, architecture),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }
    if _LAYER_EMBEDDING in gguf.tensors:
        config["vocab_size_per_layer_input"] = gguf.shapes[_LAYER_EMBEDDING][0]
    if meta.number(key("expert_count"), 0):
        config |= {
            "enable_moe_block": True,
            "num_experts": meta.size(key("expert_count")),
            "top_k_experts": meta.size(key("expert_used_count")),
            "moe_intermediate_size": meta.size(key("expert_feed_forward_length")),
        }
    return config


def _of_layers(meta: Fields, key: str, layers: int) -> list[int]:
    """A size of each layer, where a file says one for all, or all of them."""
    said = meta.get(key)
    if not isinstance(said, list):
        return [meta.size(key)] * layers
    if len(said) != layers:
        raise UserError(f"{meta.where}: {key} has {len(said)} numbers for {layers} layers")
    each = Fields({str(layer): value for layer, value in enumerate(said)}, f"{meta.where}, {key}")
    return [each.size(str(layer)) for layer in range(layers)]


def _of_kind(sizes: Sequence[int], kinds: Sequence[str], kind: str, where: str) -> int:
    """What layers of a kind have, all of them."""
    found = {size for size, each in zip(sizes, kinds, strict=True) if each == kind} or set(sizes[:1])
    if len(found) > 1:
        raise UserError(f"{where} differs between layers of {kind}")
    return found.pop()


def _values_are_keys(gguf: GGUFFile, kinds: Sequence[str]) -> bool:
    """Whether layers without a window have nothing that makes V."""
    first = next((layer for layer, kind in enumerate(kinds) if kind == _FULL), None)
    return first is not None and f"blk.{first}.attn_v.weight" not in gguf.tensors


def _ropes(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    meta, rope = Fields(gguf.metadata, gguf.where), f"{architecture}.rope"
    head_dim = meta.size(f"{architecture}.attention.key_length")
    windowed = meta.size(f"{architecture}.attention.key_length_swa")
    whole: dict[str, Any] = {"rope_type": "default", "rope_theta": meta.positive(f"{rope}.freq_base", 1e6)}
    if DIVISORS in gguf.tensors:
        divisors = divisors_of(gguf, DIVISORS, head_dim)
        turning = sum(divisor == 1.0 for divisor in divisors)
        if divisors[:turning] != [1.0] * turning or any(divisor < _STILL for divisor in divisors[turning:]):
            raise UserError(f"{gguf.where}: {DIVISORS} does more than keep a part of a head from turning")
        whole |= {"rope_type": "proportional", PARTIAL: 2 * turning / head_dim}
    if meta.size(f"{rope}.dimension_count_swa", windowed) != windowed:
        raise UserError(f"{gguf.where}: partial rotary positions ({rope}.dimension_count_swa) are not supported")
    local = {"rope_type": "default", "rope_theta": meta.positive(f"{rope}.freq_base_swa", 1e4)}
    return {_FULL: whole, _SLIDING: local}
