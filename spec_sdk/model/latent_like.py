"""What families that attend to latents share: that part of their tables of weights, and how config.json and GGUF files
tell of it (DeepSeek-V2, arXiv:2405.04434, §2.1).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, LatentAttention, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import hf_config, layers_of
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import growing_queries
from spec_sdk.model.llama_like import gain, linear, read_llama_like
from spec_sdk.model.rope_fields import PARTIAL, SPELLINGS, before_queries_grow, yarn_temperature
from spec_sdk.model.weight_table import (
    CACHED,
    KEY_COLUMNS,
    KEY_ROWS,
    LATENT,
    LATENT_QUERIES,
    MODEL,
    PLAIN,
    PLAIN_KEYS,
    QUERY_HEADS,
    QUERY_LATENT,
    VALUE,
    VALUES,
    Packing,
    Weight,
    has_k_b_transposed,
)

K_B_TRANSPOSED = "k_b_transposed"
"""What the config.json of a converted GGUF file has, where that has keys' matrix so (:class:`LatentAttention`)."""
_HF, _GGUF = "model.layers.{layer}.self_attn", "blk.{layer}.attn"


def latent_attention() -> tuple[Weight, ...]:
    """The attention sub-layer: its norm, Q or its latent, latents, what makes K and V of them, and output.

    Checkpoints have what makes K and V in one matrix, head by head, and so have GGUF files of 2024.
    """
    heights = PLAIN_KEYS, VALUES
    key, value = (Packing(f"{_HF}.kv_b_proj.weight", heights, part, groups=QUERY_HEADS) for part in (0, 1))
    key_gguf, value_gguf = (
        replace(each, name=f"{_GGUF}_kv_b.weight", present=lambda config: not has_k_b_transposed(config))
        for each in (key, value)
    )
    return (
        gain("input_norm", "model.layers.{layer}.input_layernorm", f"{_GGUF}_norm"),
        Weight(
            "q",
            f"{_HF}.q_proj.weight",
            f"{_GGUF}_q.weight",
            (LATENT_QUERIES, MODEL),
            LATENT_QUERIES,
            present=_has_no_query,
        ),
        *_queries_of_latents(),
        *linear("latent", f"{_HF}.kv_a_proj_with_mqa", f"{_GGUF}_kv_a_mqa", (CACHED, MODEL), None, _biased),
        gain("latent_norm", f"{_HF}.kv_a_layernorm", f"{_GGUF}_kv_a_norm", LATENT),
        Weight(
            "latent_key",
            f"{_HF}.k_b_proj.weight",
            f"{_GGUF}_k_b.weight",
            (KEY_ROWS, KEY_COLUMNS),
            KEY_ROWS,
            packings=(key,),
            gguf_packing=key_gguf,
            gguf_shape=(QUERY_HEADS, LATENT, PLAIN),
        ),
        Weight(
            "latent_value",
            f"{_HF}.v_b_proj.weight",
            f"{_GGUF}_v_b.weight",
            (VALUES, LATENT),
            VALUES,
            packings=(value,),
            gguf_packing=value_gguf,
            gguf_shape=(QUERY_HEADS, VALUE, LATENT),
        ),
        *linear("o", f"{_HF}.o_proj", f"{_GGUF}_output", (MODEL, VALUES), VALUES, lambda config: config.o_bias),
    )


def _queries_of_latents() -> tuple[Weight, ...]:
    down, bias = linear("query_down", f"{_HF}.q_a_proj", f"{_GGUF}_q_a", (QUERY_LATENT, MODEL), None, _biased)
    return (
        replace(down, present=_has_query),
        replace(bias, present=lambda config: _has_query(config) and _biased(config)),
        gain("query_norm", f"{_HF}.q_a_layernorm", f"{_GGUF}_q_a_norm", QUERY_LATENT, _has_query),
        Weight(
            "query_up",
            f"{_HF}.q_b_proj.weight",
            f"{_GGUF}_q_b.weight",
            (LATENT_QUERIES, QUERY_LATENT),
            LATENT_QUERIES,
            present=_has_query,
        ),
    )


def _has_query(config: ModelConfig) -> bool:
    return config.latent is not None and config.latent.q_lora_rank is not None


def _has_no_query(config: ModelConfig) -> bool:
    return not _has_query(config)


def _biased(config: ModelConfig) -> bool:
    return config.latent is not None and config.latent.biased


def read_latent_like(
    fields: Fields,
    *,
    kv_lora_rank: int = 512,
    q_lora_rank: int = 1536,
    qk_nope_head_dim: int = 128,
    qk_rope_head_dim: int = 64,
    v_head_dim: int = 128,
    experts: Experts | None = None,
    epsilon: float = 1e-6,
    tied: bool = False,
    computes: Collection[str] = (),
) -> ModelConfig:
    """The configuration of a model that attends to latents; what is given is what transformers takes where config.json
    does not say. Raises UserError for what the decoder does not compute and for impossible values.

    YaRN's ``mscale_all_dim`` also scales the scores, by its square. Where queries grow, texts are no longer than they
    do not.
    """
    latent = LatentAttention(
        kv_lora_rank=fields.size("kv_lora_rank", kv_lora_rank),
        q_lora_rank=fields.size_or_none("q_lora_rank", q_lora_rank),
        qk_nope_head_dim=fields.size("qk_nope_head_dim", qk_nope_head_dim),
        qk_rope_head_dim=fields.size("qk_rope_head_dim", qk_rope_head_dim),
        v_head_dim=fields.size("v_head_dim", v_head_dim),
        biased=fields.flag("attention_bias", False),
        k_b_transposed=fields.flag(K_B_TRANSPOSED, False),
    )
    if latent.qk_rope_head_dim % 2:
        raise UserError(
            f"{fields.where}: qk_rope_head_dim is {latent.qk_rope_head_dim}, rotary positions need an even one"
        )
    config = read_llama_like(
        _without_heads(fields),
        kv_heads=1,
        head_dim=latent.qk_rope_head_dim,
        o_bias=latent.biased,
        tied=tied,
        epsilon=epsilon,
        experts=experts,
        rotary_neighbours=fields.flag("rope_interleave", True),
        computes=computes,
    )
    return replace(
        config,
        head_dim=latent.width,
        latent=latent,
        attention_scale=latent.qk_head_dim**-0.5 * yarn_temperature(fields) ** 2,
        max_context=before_queries_grow(fields, config.max_context),
    )


def _without_heads(fields: Fields) -> Fields:
    """What config.json says of heads means nothing here, and differs between releases."""
    unread = ("head_dim", "num_key_value_heads", PARTIAL)
    kept = {key: given for key, given in fields.values.items() if key not in unread}
    for spelling in SPELLINGS:
        if isinstance(rope := kept.get(spelling), dict):
            kept[spelling] = {key: given for key, given in rope.items() if key != PARTIAL}
    return Fields(kept, fields.where)


def gguf_latent_like(gguf: GGUFFile, architecture: str) -> dict[str, Any]:
    """What config.json would say of a GGUF file's model that attends to latents; experts are the family's business.

    Raises UserError for what the decoder cannot run or the file lacks.
    """
    config, meta = hf_config(gguf, computes_experts=True, latents=True), Fields(gguf.metadata, gguf.where)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    rotary, rope = meta.size(key("rope.dimension_count")), config["rope_parameters"]
    # the converter writes a tenth of it
    if weight := 10 * meta.number(key("rope.scaling.yarn_log_multiplier"), 0.0):
        rope |= {"mscale": weight, "mscale_all_dim": weight}
    rope |= growing_queries(gguf, architecture, rope)
    # files of 2024 have what makes K and V of latents in one tensor, and sizes of heads under the usual keys
    apart = "blk.0.attn_k_b.weight" in gguf.tensors
    suffix = "_mla" if apart else ""
    return config | {
        "num_hidden_layers": layers_of(gguf, architecture),
        "kv_lora_rank": meta.size(key("attention.kv_lora_rank")),
        "q_lora_rank": meta.size_if_any(key("attention.q_lora_rank"))
        if "blk.0.attn_q_a.weight" in gguf.tensors
        else None,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": meta.size(key(f"attention.key_length{suffix}")) - rotary,
        "v_head_dim": meta.size(key(f"attention.value_length{suffix}")),
        "attention_bias": False,
        K_B_TRANSPOSED: apart,
    }
