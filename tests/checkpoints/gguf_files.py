"""Tiny GGUF files, written with the gguf package from random transformers models, as llama.cpp's converter would."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedModel

from benchmarks.support.random_gguf import random_blocks
from spec_sdk.model.architectures import read_config, weights_of
from tests.checkpoints.gguf_gemma4 import add_gemma4, gemma4_kv_heads, gemma4_widths
from tests.checkpoints.gguf_latents import (
    BY_PROBABILITY,
    LATENTS,
    WITH_EXPERTS,
    add_latents,
    keys_and_values,
    latent_values,
    stored_by,
)
from tests.checkpoints.gguf_recurrent import (
    NEMOTRON,
    QWENS,
    STATE_SPACE_FLOATS,
    add_recurrent,
    feed_forward_length,
    joined,
    kv_heads,
    nemotron_architecture,
    norm_epsilon,
    recurrent_values,
)
from tests.support.tiny_checkpoints import checkpoint_tensors, random_model

Customize = Callable[[gguf.GGUFWriter], None]

# widths that GGML's blocks of 32 divide
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
GGUF_ARCHITECTURE = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "glm": "glm4",
    "olmo3": "olmo2",
    "glm4_moe": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "gpt_oss": "gpt-oss",
    "ministral3": "mistral3",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1",
    **QWENS,
    **{name: "deepseek2" for name in LATENTS if name != "mistral4"},
}
"""Where it is not the model type."""
PERMUTED = ("llama", "granite", "granitemoe", "granitehybrid", "smollm3", "mistral3")
"""Those of which llama.cpp's converter reorders Q and K."""
DEEPSEEK_MIXTURES = ("glm4_moe", "dots1", *WITH_EXPERTS)
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "ernie4_5_moe", "olmoe", "gpt_oss", *DEEPSEEK_MIXTURES)
RECURRENT_MIXTURES = ("qwen3_next", "qwen3_5_moe_text", "lfm2_moe", "granitemoehybrid", "nemotron_h")
TEXT = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs, 12 34! " * 20


def gguf_architecture(config: Any) -> str:
    """What the file of a model is called."""
    if config.model_type == NEMOTRON:
        return nemotron_architecture(config)
    return GGUF_ARCHITECTURE.get(config.model_type, config.model_type)


def byte_level_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens (three special ones first) and merges of a small byte-level BPE."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    trained.train_from_iterator([TEXT], trainer)
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    state = json.loads(trained.to_str())
    return tokens, [" ".join(merge) for merge in state["model"]["merges"]]


def sentencepiece_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and token types of a small SentencePiece BPE with byte fallback."""
    pieces = ["▁", *sorted(set(TEXT.replace(" ", "")))]
    for word in ("the", "ui", "ick", "fox", "qu", "th", "▁t", "▁th", "▁the", "he", "er", "ov", "over", "▁over"):
        pieces += [word] if word not in pieces else []
    pieces += [word for word in ("ck", "ver", "do", "zen", "dozen", "▁d", "▁do", "▁dozen", "▁▁") if word not in pieces]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *pieces]
    types = [2, 3, 3, *([6] * 256), *([1] * len(pieces))]
    scores = [0.0] * 259 + [-float(len(pieces) - len(piece) + i / 1000) for i, piece in enumerate(pieces)]
    return tokens, scores, types


def add_byte_level(writer: gguf.GGUFWriter, pre: str = "smollm") -> None:
    """A byte-level tokenizer with a chat template."""
    tokens, merges = byte_level_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}")


def add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece tokenizer."""
    tokens, scores, types = sentencepiece_vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def add_gemma_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Gemma's: SentencePiece without a dummy space, and runs of spaces and line breaks as tokens of their own."""
    tokens, scores, types = sentencepiece_vocabulary()
    own = ["  ", "   ", "\n\n", "<start_of_turn>", "<end_of_turn>"]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*tokens, *own])
    writer.add_token_scores([*scores, *([-1000.0] * len(own))])
    writer.add_token_types([*types, 4, 4, 4, 3, 3])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(len(tokens) + 4)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    )


def tiny_model(name: str, **overrides: Any) -> PreTrainedModel:
    """A random model with a vocabulary that holds either tokenizer."""
    return random_model(name, **{"vocab_size": 384, "num_hidden_layers": 2, **SHAPE, **overrides})


def write_gguf(
    path: Path,
    name: str = "smollm",
    kind: str | Callable[[str], str] = "F32",
    tokenizer: Customize = add_byte_level,
    customize: Customize | None = None,
    latents_apart: bool = True,
    **overrides: Any,
) -> PreTrainedModel:
    """Write a random model as GGUF with its matrices stored as ``kind``, or as this says by GGUF's name; return the
    model. ``latents_apart``: as :func:`~tests.checkpoints.gguf_latents.add_latents` has it.
    """
    model = tiny_model(name, **overrides)
    config = model.config
    is_gemma4 = config.model_type == "gemma4_text"
    if is_gemma4:
        config.allow_global_per_layer_attribute_access = True
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    architecture = gguf_architecture(config)
    # without rotary positions it says nothing of them
    parameters = getattr(config, "rope_parameters", {"rope_theta": 1e4, "rope_type": "default"})
    rope = parameters.get("full_attention", parameters)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    # published Qwen 3.5s with experts have no such width
    if config.model_type != "qwen3_5_moe_text":
        writer.add_feed_forward_length(gemma4_widths(config) if is_gemma4 else feed_forward_length(config))
    writer.add_head_count(config.num_attention_heads)
    one_key = config.model_type in LATENTS and latents_apart
    writer.add_head_count_kv(1 if one_key else gemma4_kv_heads(config) if is_gemma4 else kv_heads(config))
    writer.add_layer_norm_rms_eps(norm_epsilon(config))
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture in ("gemma2", "gemma3"):
        _add_gemma(writer, config, rope)
    if architecture.startswith("granite"):
        _add_multipliers(writer, config)
    if config.model_type == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if config.model_type in ("gpt_oss", "ministral3"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        _add_long_rope(writer, config, rope)
    if config.model_type in ("phi3", "olmo3", "exaone4", "gpt_oss") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("olmo3", "exaone4") and config.sliding_window:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if is_gemma4:
        add_gemma4(writer, config)
    elif config.model_type in LATENTS:
        add_latents(writer, config, rope, latents_apart)
    else:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    # the configuration of a Nemotron counts experts that it may not have
    has_experts = architecture != "nemotron_h" and getattr(config, "num_local_experts", True)
    if config.model_type in (*MIXTURES, *RECURRENT_MIXTURES) and has_experts:
        _add_experts(writer, config)
    add_recurrent(writer, config)
    tokenizer(writer)
    if customize is not None:
        customize(writer)
    table = weights_of(read_config({**config.to_dict(), **stored_by(config, latents_apart)}, "tests"))
    kind_of = (lambda name: kind) if isinstance(kind, str) else kind
    parts_of: dict[str, list[np.ndarray]] = {}
    for hf_name, tensor in _converted(checkpoint_tensors(model)).items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = recurrent_values(hf_name, tensor.numpy(), config)
        values = latent_values(hf_name, values, config, latents_apart)
        if architecture in ("gemma", "gemma2", "gemma3") and hf_name.endswith("norm.weight"):
            values = values + 1
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, count in heads.items():
            if f".{part}." in hf_name and architecture in PERMUTED:
                values = _permuted(values, count)
        parts_of.setdefault(table.gguf_name(hf_name), []).append(values)
    for name, parts in parts_of.items():
        if name.endswith("ffn_gate_up_exps.weight"):
            values = np.concatenate(parts, axis=1)
        else:
            values = keys_and_values(parts) if name.endswith("attn_kv_b.weight") else joined(name, parts, config)
        # llama.cpp's converter leaves routers, biases and convolutions in F32
        stored_as = gguf.GGMLQuantizationType[kind_of(name)]
        small = name.endswith(
            ("ffn_gate_inp.weight", "conv1d.weight", "shortconv.conv.weight", ".bias", *STATE_SPACE_FLOATS)
        )
        matrix = values.ndim > 1 and stored_as.name != "F32" and not small
        data = quantized(np.ascontiguousarray(values), stored_as) if matrix else np.ascontiguousarray(values)
        writer.add_tensor(name, data, raw_dtype=stored_as if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def quantized(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Rows of blocks. The gguf package makes none of K-quants: those are random, of about the values' size."""
    if kind.name.endswith("_K"):
        rng = np.random.default_rng(zlib.crc32(values.tobytes()))
        return random_blocks(rng, kind.name, values.shape, float(values.std()))
    made: np.ndarray = gguf.quants.quantize(values, kind)
    return made


def _add_gemma(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    """Windows, caps and rope scaling, as far as llama.cpp's converter writes them."""
    writer.add_sliding_window(config.sliding_window)
    if config.attn_logit_softcapping:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _add_multipliers(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _add_long_rope(writer: gguf.GGUFWriter, config: Any, rope: dict[str, Any]) -> None:
    """As llama.cpp's converter does: the factor of attention is the root that LongRoPE's authors give."""
    original = config.original_max_position_embeddings
    scale = config.max_position_embeddings / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    for name in ("long", "short"):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32))


def _converted(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As llama.cpp's converter has them: the experts of a layer as one, under the first one's name; no dims of 1."""
    experts: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        # the order in which transformers gives them is that of their numbers
        experts.setdefault(re.sub(r"experts\.\d+\.", "experts.0.", name), []).append(tensor)
    return {
        name: torch.stack(parts) if ".experts." in name else parts[0] if parts[0].dim() < 2 else parts[0].squeeze()
        for name, parts in experts.items()
    }


def _add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    granites = "granitemoe", "granitemoehybrid"
    of_local = config.model_type in ("mixtral", "gpt_oss", NEMOTRON, *granites, *DEEPSEEK_MIXTURES)
    of_all = config.n_routed_experts if config.model_type in WITH_EXPERTS else None
    writer.add_expert_count(of_all or (config.num_local_experts if of_local else config.num_experts))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif config.model_type not in ("mixtral", "granitemoe", "granitemoehybrid", "olmoe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "ernie4_5_moe":
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.moe_num_shared_experts * config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    if config.model_type == "lfm2_moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type in DEEPSEEK_MIXTURES:
        by_sigmoid = config.model_type not in BY_PROBABILITY
        gating = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(gating.SIGMOID if by_sigmoid else gating.SOFTMAX)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if config.model_type in WITH_EXPERTS:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def _permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Halves of each head as neighbouring pairs: what llama.cpp's converter does to Q and K of llama models."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
