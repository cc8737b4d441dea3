"""What llama.cpp's converter says of a Gemma 4, and its tokenizer."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np


def add_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
    """Its two kinds of layers, what the last of them share, and what keeps a part of the larger heads from turning."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    own = {layer: config.per_layer_config[layer] for layer, windowed in enumerate(slides) if not windowed}
    large = next(iter(own.values()))
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_key_length(large.head_dim)
    writer.add_value_length(large.head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(large.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    turning = int(large.head_dim * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * turning + [1e30] * (large.head_dim // 2 - turning)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def gemma4_kv_heads(config: Any) -> int | list[int]:
    """One number where all layers have as many."""
    each = [config.per_layer_config[layer].num_key_value_heads for layer in range(config.num_hidden_layers)]
    return each[0] if len(set(each)) == 1 else each


def gemma4_widths(config: Any) -> int | list[int]:
    """The same of MLPs."""
    own = config.num_hidden_layers - config.num_kv_shared_layers
    if not config.use_double_wide_mlp:
        width: int = config.intermediate_size
        return width
    return [config.intermediate_size * (1 if layer < own else 2) for layer in range(config.num_hidden_layers)]


def gemma4_vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges: letters, runs of spaces and of line breaks, two words, all bytes, and the ends of turns."""
    merges = [("t", "h"), ("th", "e"), ("o", "v"), ("e", "r"), ("ov", "er"), ("▁", "▁"), ("\n", "\n"), ("▁", "a")]
    letters = [*map(chr, range(33, 127)), "▁", "\n", "\t", "日"]
    own = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return [*own, *letters, *(left + right for left, right in merges), "<turn|>", "<|tool_response>"], merges


def add_gemma4_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Of :func:`gemma4_vocabulary`, as files have it that say, wrongly, that texts do not begin with BOS."""
    tokens, merges = gemma4_vocabulary()
    kinds = gguf.TokenType
    types = [kinds.CONTROL] * 5 + [kinds.BYTE] * 256 + [kinds.NORMAL] * (len(tokens) - 263) + [kinds.CONTROL] * 2
    types[3] = kinds.UNKNOWN
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(False)
