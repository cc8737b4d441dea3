"""Tiny random checkpoints in Hugging Face layout, written by transformers: the reference for our decoder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.mistral4 import Mistral4ForCausalLM

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
YARN_ROPE: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.25, 1.5],
    "long_factor": [1.0, 2.5, 7.0, 20.0],
    "original_max_position_embeddings": 32,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
QWEN2_MOE = {**EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}
DEEPSEEK_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
LATENTS: dict[str, Any] = {
    "kv_lora_rank": 32,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 6,
}
DEEPSEEK_YARN: dict[str, Any] = {
    "rope_parameters": {
        "rope_theta": 10000.0,
        **YARN_ROPE,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    }
}
LONG_PHI = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.25],
    "long_factor": [1.0, 2.5, 7.0],
}
DELTA_NETS: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.17,
    "logits_scaling": 3.0,
}
STATE_SPACES: dict[str, Any] = {
    "shared_intermediate_size": 56,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_expand": 2,
}
FALCON_H1: dict[str, Any] = {
    "head_dim": 16,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_norm_before_gate": False,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.4,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.3,
    "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.7],
    "mlp_multipliers": [0.9, 0.6],
    "embedding_multiplier": 5.6,
    "lm_head_multiplier": 0.4,
}
NEMOTRON_H: dict[str, Any] = {
    "num_hidden_layers": 7,
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 16,
    # transformers makes random steps by its logarithm, and bounds them by it
    "time_step_min": 1e-30,
}
GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 8,
    "layer_types": [*["sliding_attention", "sliding_attention", "full_attention"] * 2]
    + ["sliding_attention", "full_attention"],
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama3": ("llama", {"rope_parameters": {"rope_theta": 500000.0, **LLAMA3_ROPE}}),
    "linear_rope": ("llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}}),
    "long_rope": ("llama", {"rope_parameters": {"rope_theta": 10000.0, **LONG_ROPE}}),
    "smollm": ("llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}),
    "biased_llama": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral_sliding": ("mistral", {"sliding_window": 24, "head_dim": 8}),
    "ministral3": (
        "ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_theta": 1e4,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 3, "tie_word_embeddings": True},
    ),
    "yarn_qwen2": ("qwen2", {"rope_parameters": {"rope_theta": 10000.0, **YARN_ROPE}}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2_moe": ("qwen2_moe", QWEN2_MOE),
    "late_experts": ("qwen2_moe", {**QWEN2_MOE, "mlp_only_layers": [0]}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "sparse_steps": ("qwen3_moe", {**EXPERTS, "head_dim": 8, "decoder_sparse_step": 2, "attention_bias": True}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "phi3": ("phi3", {"sliding_window": 24}),
    "phi4": (
        "phi3",
        {
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 32,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75, **LONG_PHI},
        },
    ),
    "glm": ("glm", {"head_dim": 16, "attention_bias": True}),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": False}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16, "use_bias": True}),
    "smollm3": ("smollm3", {"use_sliding_window": True, "sliding_window": 24}),
    "seed_oss": ("seed_oss", {"head_dim": 16, "attention_out_bias": True}),
    "granite": ("granite", {**MULTIPLIERS, "mlp_bias": True}),
    "granitemoe": ("granitemoe", {**MULTIPLIERS, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 2,
        },
    ),
    "glm4_moe": ("glm4_moe", {**DEEPSEEK_EXPERTS, "head_dim": 16, "attention_bias": True, "use_qk_norm": True}),
    "deepseek_v2": ("deepseek_v2", {**DEEPSEEK_EXPERTS, **LATENTS, "q_lora_rank": None, "norm_topk_prob": False}),
    "deepseek_v3": ("deepseek_v3", {**DEEPSEEK_EXPERTS, **LATENTS, **DEEPSEEK_YARN}),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        # transformers has this epsilon in norms of latents, whatever the others'
        {**DEEPSEEK_EXPERTS, **LATENTS, "rope_interleave": False, "attention_bias": True, "rms_norm_eps": 1e-6},
    ),
    "mistral4": (
        "mistral4",
        {
            **DEEPSEEK_EXPERTS,
            **LATENTS,
            "rope_parameters": {
                "rope_theta": 1e4,
                **YARN_ROPE,
                "original_max_position_embeddings": 512,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "youtu": ("youtu", {**LATENTS, "tie_word_embeddings": True, "initializer_range": 0.02}),
    "dots1": (
        "dots1",
        {
            **DEEPSEEK_EXPERTS,
            "n_group": 1,
            "topk_group": 1,
            "sliding_window": 24,
            "max_window_layers": 3,
            "head_dim": 8,
        },
    ),
    "olmo2": ("olmo2", {"num_key_value_heads": 3, "attention_bias": True}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 24,
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e5, **YARN_ROPE},
                "sliding_attention": {"rope_theta": 5e5, "rope_type": "default"},
            },
        },
    ),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "gpt_oss": (
        "gpt_oss",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 32,
            "rope_parameters": {"rope_theta": 150000.0, **YARN_ROPE, "truncate": False},
        },
    ),
    "exaone4": ("exaone4", {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 4}),
    "granite4": (
        "granitemoehybrid",
        {
            **MULTIPLIERS,
            "num_local_experts": 0,
            "shared_intermediate_size": 80,
            "layer_types": ["attention"] * 5,
            "position_embedding_type": "rope",
            "mamba_n_heads": 4,
            "mamba_expand": 1,
        },
    ),
    "granite4_h": ("granitemoehybrid", {**MULTIPLIERS, **STATE_SPACES, "num_local_experts": 0}),
    "granite4_moe": (
        "granitemoehybrid",
        {**MULTIPLIERS, **STATE_SPACES, "num_local_experts": 5, "num_experts_per_tok": 2, "mamba_n_groups": 1},
    ),
    "falcon_h1": ("falcon_h1", FALCON_H1),
    "normed_falcon_h1": ("falcon_h1", {**FALCON_H1, "mamba_rms_norm": True, "tie_word_embeddings": True}),
    "nemotron_h": ("nemotron_h", {**NEMOTRON_H, "hybrid_override_pattern": "M-MM*-M"}),
    "nemotron_h_moe": (
        "nemotron_h",
        {
            **NEMOTRON_H,
            "hybrid_override_pattern": "MEM*EM-",
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        },
    ),
    "gemma": ("gemma", {"head_dim": 16}),
    "qwen3_5": ("qwen3_5_text", {**DELTA_NETS, "tie_word_embeddings": True}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**DELTA_NETS, **EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3_next": ("qwen3_next", {**DELTA_NETS, **QWEN2_MOE}),
    "lfm2": (
        "lfm2",
        {
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
        },
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            **EXPERTS,
            "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
            "conv_L_cache": 4,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
        },
    ),
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
    "gemma4": (
        "gemma4_text",
        {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 3},
    ),
    "gemma4_small": (
        "gemma4_text",
        {
            **GEMMA4,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": VOCABULARY,
        },
    ),
    "gemma4_moe": (
        "gemma4_text",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
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
    # a configuration may write to what it is given
    config = CONFIG_MAPPING[model_type](**copy.deepcopy({**SHAPE, **differences, **overrides}))
    torch.manual_seed(seed)
    # it finds this one within a model that sees alone
    make = Mistral4ForCausalLM._from_config if model_type == "mistral4" else AutoModelForCausalLM.from_config
    model = make(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
        for name, tensor in model.state_dict().items():
            if name.endswith(("correction_bias", "expert_bias")):
                tensor.copy_(0.2 * torch.randn_like(tensor))
            if name.endswith("q_norm.weight") and model_type == "gemma4_text":
                # nothing else scales its scores
                tensor.mul_(0.25)
            if name.endswith("layer_scalar"):
                tensor.copy_(0.7 + 0.2 * torch.rand_like(tensor))
            if name.endswith("proj_bias"):
                # those of experts' gates reach beyond the limits of gpt-oss's activation
                tensor.copy_((4.0 if "gate_up" in name else 0.2) * torch.randn_like(tensor))
    return model


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors under the names that published checkpoints have for them: the experts one by one, and so
    matrices that are one of several.
    """
    tensors: dict[str, torch.Tensor] = revert_weight_conversion(model, model.state_dict())
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        apart |= _apart(name, tensor, model.config)
    return {name: tensor.contiguous() for name, tensor in apart.items()}


def _apart(name: str, tensor: torch.Tensor, config: Any) -> dict[str, torch.Tensor]:
    """What of a tensor transformers' modules multiply with one after the other, under ordinary names."""
    if name.endswith("qkv_proj.weight"):
        head = config.hidden_size // config.num_attention_heads
        ends = config.num_attention_heads * head, (config.num_attention_heads + config.num_key_value_heads) * head
        parts = zip("qkv", tensor.tensor_split(ends), strict=True)
        return {name.replace("qkv_proj", f"{part}_proj"): rows for part, rows in parts}
    if name.endswith("kv_b_proj.weight"):
        heads = tensor.unflatten(0, (config.num_attention_heads, -1))
        parts = zip("kv", heads.split((config.qk_nope_head_dim, config.v_head_dim), 1), strict=True)
        return {name.replace("kv_b_proj", f"{part}_b_proj"): rows.flatten(0, 1) for part, rows in parts}
    if name.endswith("gate_up_proj.weight"):
        gate, up = tensor.chunk(2)
        return {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
    if name.endswith(("in_proj_qkvz.weight", "in_proj_ba.weight")):
        return by_key_head(name, tensor, config)
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = tensor.chunk(2)
        module = name.replace("shared_mlp.input_linear.weight", _shared_mlp(config))
        return {f"{module}.gate_proj.weight": gate, f"{module}.up_proj.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {name.replace("shared_mlp.output_linear", f"{_shared_mlp(config)}.down_proj"): tensor}
    if name.endswith("put_linear.weight"):
        module = name.rpartition(".")[0].rpartition(".")[0]
        of_expert: dict[str, torch.Tensor] = {}
        for expert, matrix in enumerate(tensor):
            halves = zip(("w1", "w3"), matrix.chunk(2), strict=True)
            named = dict(halves) if name.endswith("input_linear.weight") else {"w2": matrix}
            of_expert |= {f"{module}.experts.{expert}.{part}.weight": rows for part, rows in named.items()}
        return of_expert
    if config.model_type == "gpt_oss" and ".experts." in name:
        # rows of gates and units take turns
        module, _, kind = name.rpartition(".")
        role, ending = kind.removesuffix("_bias"), "bias" if kind.endswith("_bias") else "weight"
        rows = tensor if ending == "bias" else tensor.mT
        named = {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]} if role == "gate_up_proj" else {role: rows}
        return {
            f"{module}.{expert}.{part}.{ending}": matrix
            for part, of_all in named.items()
            for expert, matrix in enumerate(of_all)
        }
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        module, _, role = name.rpartition(".")
        roles = ("gate_proj", "up_proj") if role == "gate_up_proj" else (role,)
        return {
            f"{module}.{expert}.{part}.weight": matrix
            for part, of_all in zip(roles, tensor.chunk(len(roles), 1), strict=True)
            for expert, matrix in enumerate(of_all)
        }
    return {name: tensor}


def _shared_mlp(config: Any) -> str:
    """What Granite's shared MLP is beside a mixture, and without one."""
    return "mlp.shared_expert" if config.num_local_experts else "mlp"


def by_key_head(name: str, tensor: torch.Tensor, config: Any) -> dict[str, torch.Tensor]:
    """What Qwen 3 Next's matrices have of each key head, one below the other."""
    heads_each = config.linear_num_value_heads // config.linear_num_key_heads
    values = heads_each * config.linear_value_head_dim
    large = config.linear_key_head_dim, config.linear_key_head_dim, values, values
    letters, heights = ("qkvz", large) if "qkvz" in name else ("ba", (heads_each, heads_each))
    parts = tensor.unflatten(0, (config.linear_num_key_heads, -1)).split(heights, 1)
    names = [name.replace(f"in_proj_{letters}", f"in_proj_{letter}") for letter in letters]
    return dict(zip(names, (part.flatten(0, 1) for part in parts), strict=True))


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
