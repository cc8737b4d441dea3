"""Nemotron H (NVIDIA 2025, arXiv:2504.03624), Nemotron Nano 2 and Nemotron 3 Nano: a layer is one of Mamba-2's state
spaces, or attention without rotary positions, or an MLP, or a mixture of experts by DeepSeek-V3's rules, each behind
one norm. No MLP has a gate: their activation is a squared ReLU.

Steps have the bounds of ``time_step_limit``, mostly none, as in its authors' code, vLLM and llama.cpp. transformers 5
raises those of whole texts to ``time_step_min``, but none when it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig, StateSpaces
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.deepseek_mixture import COUNTED_AS, deepseek_experts, read_deepseek_experts
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.layer_pattern import (
    ATTENTION,
    MIXTURE,
    ONE_MLP,
    STATE_SPACE,
    gguf_pattern,
    layers_by_kind,
    read_pattern,
)
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import gguf_experts
from spec_sdk.model.recurrent.space_settings import gguf_state_spaces, read_state_spaces
from spec_sdk.model.recurrent.weights import attention_alone, state_spaces
from spec_sdk.model.weight_table import Packing, Weight

_NOT_COMPUTED = {
    "use_bias": "biases of state spaces' projections",
    "mlp_bias": "biases of MLPs",
    "attention_bias": "biases of attention",
    "residual_in_fp32": "residuals in float32",
    "moe_latent_size": "experts of a latent size",
    "sliding_window": "sliding windows",
    "block_configs": "layers of different sizes",
}
_SPACES: Mapping[str, tuple[Sequence[str], Any]] = {
    "mamba_n_heads": (("mamba_num_heads", "mamba_n_heads"), 128),
    "mamba_d_head": (("mamba_head_dim", "mamba_d_head"), 64),
    "mamba_n_groups": (("n_groups", "mamba_n_groups"), 8),
    "mamba_d_state": (("ssm_state_size", "mamba_d_state"), 128),
    "mamba_d_conv": (("conv_kernel", "mamba_d_conv"), 4),
    "mamba_conv_bias": (("use_conv_bias", "mamba_conv_bias"), True),
    "time_step_limit": (("time_step_limit", "mamba_dt_limit"), None),
}
"""What others call it: the keys that it may have here, the first of them that there is, and what else it is."""
_NAMES = {
    "model.embed_tokens": "backbone.embeddings",
    "model.layers": "backbone.layers",
    "model.norm": "backbone.norm_f",
    ".input_layernorm": ".norm",
    ".self_attn.": ".mixer.",
    ".mamba.": ".mixer.",
    ".mlp.": ".mixer.",
}


def _read_config(fields: Fields) -> ModelConfig:
    for key, what in _NOT_COMPUTED.items():
        if fields.get(key) not in (None, False):
            raise UserError(f"{fields.where}: {what} ({key}) are not supported")
    for key, only in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
        if (said := fields.text(key, only)) != only:
            raise UserError(f"{fields.where}: unsupported {key} '{said}', only '{only}' is supported")
    pattern = read_pattern(fields)
    own = {
        "num_hidden_layers": len(pattern),
        "rms_norm_eps": fields.positive("layer_norm_epsilon", 1e-5),
        "head_dim": fields.size("head_dim", fields.size("attention_head_dim", 128)),
        "intermediate_size": fields.size("intermediate_size", 21504),
        "max_position_embeddings": fields.size("max_position_embeddings", 4096),
    }
    unrotated = {key: value for key, value in fields.values.items() if not key.startswith(("rope_", "partial_rotary"))}
    read, layers = Fields({**unrotated, **own}, fields.where), layers_by_kind(pattern)
    config = read_llama_like(
        read,
        # null is as many as query heads
        kv_heads=None if "num_key_value_heads" in read.values else 8,
        experts=_experts(read, layers[MIXTURE]),
        unrotated=range(len(pattern)),
        computes=(COUNTED_AS,),
    )
    return replace(
        config,
        activation="squared_relu",
        recurrent=_spaces(read, layers[STATE_SPACE]),
        without_attention=tuple(sorted((*layers[ONE_MLP], *layers[MIXTURE]))),
        without_mlp=tuple(sorted((*layers[STATE_SPACE], *layers[ATTENTION]))),
    )


def _spaces(fields: Fields, layers: Sequence[int]) -> StateSpaces | None:
    if not layers:
        return None
    read = {
        theirs: next((fields.get(key) for key in keys if fields.get(key) is not None), default)
        for theirs, (keys, default) in _SPACES.items()
    }
    spaces = Fields({**read, "mamba_proj_bias": fields.get("mamba_proj_bias")}, fields.where)
    return read_state_spaces(spaces, layers, spaces.size("mamba_n_heads") * spaces.size("mamba_d_head"))


def _experts(fields: Fields, layers: Sequence[int]) -> Experts | None:
    if not layers:
        return None
    found = read_deepseek_experts(fields, count=8, per_token=2, width=7688, shared=1, first=0, normalized=True)
    assert found is not None, "there are layers"
    shared = fields.size("moe_shared_expert_intermediate_size", 7688)
    return replace(found, layers=tuple(layers), shared_intermediate_size=shared)


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    meta = Fields(gguf.metadata, gguf.where)
    architecture = meta.text("general.architecture", "")
    pattern, alike = gguf_pattern(gguf, architecture)
    alike.metadata = {
        # some files have it under the name of another norm alone
        f"{architecture}.attention.layer_norm_rms_epsilon": meta.get(f"{architecture}.attention.layer_norm_epsilon"),
        **{key: value for key, value in alike.metadata.items() if not key.startswith(f"{architecture}.rope.")},
    }
    config = hf_config(alike, computes_experts=True)
    return (
        config
        | gguf_state_spaces(gguf, architecture)
        | _gguf_mixture(gguf, architecture, pattern)
        | {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": pattern,
            "layer_norm_epsilon": config["rms_norm_eps"],
        }
    )


def _gguf_mixture(gguf: GGUFFile, architecture: str, pattern: str) -> dict[str, Any]:
    if MIXTURE not in pattern:
        return {}
    meta = Fields(gguf.metadata, gguf.where)
    if meta.number(f"{architecture}.moe_latent_size", 0):
        raise UserError(f"{gguf.where}: experts of a latent size ({architecture}.moe_latent_size) are not supported")
    if meta.number(f"{architecture}.expert_group_count", 1) > 1:
        raise UserError(f"{gguf.where}: {architecture}.expert_group_count is not supported in this family")
    first = pattern.index(MIXTURE)
    mixture = gguf_experts(gguf, architecture, scored_by="sigmoid", scaled=True, layer=first, gated=False)
    if not mixture:
        raise UserError(f"{gguf.where}: has no {architecture}.expert_count")
    return {
        COUNTED_AS: mixture["num_experts"],
        "num_experts_per_tok": mixture["num_experts_per_tok"],
        "moe_intermediate_size": mixture["moe_intermediate_size"],
        "moe_shared_expert_intermediate_size": meta.size(f"{architecture}.expert_shared_feed_forward_length"),
        "routed_scaling_factor": meta.number(f"{architecture}.expert_weights_scale", 1.0) or 1.0,
        "norm_topk_prob": meta.flag(f"{architecture}.expert_weights_norm", False),
    }


def _weights() -> Iterator[Weight]:
    rows = *embedding(), *attention_alone(attention()), *state_spaces(), *mlp(norm=None), *deepseek_experts(), *output()
    for row in rows:
        if row.role.endswith("gate"):
            continue
        name = row.name
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        # as transformers 5 has it, all experts of a layer in one tensor
        later = name.replace("backbone.", "model.")
        if row.per_expert:
            later = later.replace(".{expert}", "").removesuffix(".weight")
        yield replace(row, name=name, packings=(Packing(later, published=False),) if later != name else ())


FAMILY = Family(
    model_types=("nemotron_h",),
    gguf_architectures=("nemotron_h", "nemotron_h_moe"),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=tuple(_weights()),
)
