"""What the Llama-like families share: the parts of their tables of weights, and how their config.json is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from spec_sdk.errors import UserError
from spec_sdk.model.config import Experts, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.float8_weights import is_float8
from spec_sdk.model.integer_layouts import integer_layout
from spec_sdk.model.mxfp4_weights import is_mxfp4
from spec_sdk.model.quantization_config import quantization_of
from spec_sdk.model.rope_fields import read_rope, rotated_dims
from spec_sdk.model.weight_table import (
    HEAD,
    KEYS,
    MLP,
    MODEL,
    QUERIES,
    QUERY_HEADS,
    VOCABULARY,
    Dim,
    Packing,
    Weight,
    always,
    every_layer,
    has_mlp,
)

_LAYER, _BLOCK = "model.layers.{layer}", "blk.{layer}"

_NOT_COMPUTED = {
    "attn_logit_softcapping": "attention logit softcapping",
    "final_logit_softcapping": "final logit softcapping",
    "query_pre_attn_scalar": "its own attention scale",
    "attention_multiplier": "its own attention scale",
    "logits_scaling": "scaled logits",
    "logit_scale": "scaled logits",
    "residual_multiplier": "scaled residuals",
    "embedding_multiplier": "scaled embeddings",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "no_rope_layers": "layers without rotary positions",
}

EXPERT_COUNTS = ("num_experts", "num_local_experts")


def embedding() -> tuple[Weight, ...]:
    """The embedding, whole on every rank."""
    return (Weight("embedding", "model.embed_tokens.weight", "token_embd.weight", (VOCABULARY, MODEL)),)


def attention(
    rotary_pairs: bool = False, minus_one: bool = False, normed: bool = True, wide_qk_norm: bool = False
) -> tuple[Weight, ...]:
    """The attention sub-layer: its norm, Q, K, V and output, and norms of Q and K where the configuration has them.

    ``rotary_pairs``: llama.cpp's converter reorders Q and K; ``minus_one``: so are gains stored (:class:`Weight`).
    ``normed``: it has a norm; ``wide_qk_norm``: those of Q and K are of all heads together.
    """
    hf, gguf, pairs = f"{_LAYER}.self_attn", f"{_BLOCK}.attn", rotary_pairs
    before = gain("input_norm", f"{_LAYER}.input_layernorm", f"{gguf}_norm", minus_one=minus_one)
    queries, keys = (QUERIES, KEYS) if wide_qk_norm else (HEAD, HEAD)
    split = (queries, keys) if wide_qk_norm else (None, None)

    def has_norms(config: ModelConfig) -> bool:
        return config.qk_norm

    return (
        *([before] if normed else []),
        *linear("q", f"{hf}.q_proj", f"{gguf}_q", (QUERIES, MODEL), QUERIES, lambda config: config.qkv_bias, pairs),
        *linear("k", f"{hf}.k_proj", f"{gguf}_k", (KEYS, MODEL), KEYS, lambda config: config.qkv_bias, pairs),
        *linear("v", f"{hf}.v_proj", f"{gguf}_v", (KEYS, MODEL), KEYS, lambda config: config.qkv_bias),
        *linear("o", f"{hf}.o_proj", f"{gguf}_output", (MODEL, QUERIES), QUERIES, lambda config: config.o_bias),
        replace(gain("q_norm", f"{hf}.q_norm", f"{gguf}_q_norm", queries, has_norms, minus_one), split=split[0]),
        replace(gain("k_norm", f"{hf}.k_norm", f"{gguf}_k_norm", keys, has_norms, minus_one), split=split[1]),
    )


def sinks() -> tuple[Weight]:
    """Attention sinks, one of every query head."""
    return (
        Weight(
            "sinks",
            f"{_LAYER}.self_attn.sinks",
            f"{_BLOCK}.attn_sinks.weight",
            (QUERY_HEADS,),
            split=QUERY_HEADS,
            present=lambda config: config.attention_sinks,
        ),
    )


def mlp(
    norm: str | None = "post_attention_layernorm", minus_one: bool = False, gguf_norm: str = "ffn_norm"
) -> tuple[Weight, ...]:
    """The MLP sub-layer: its norm if it has one, and gate, up and down of layers without a mixture of experts."""
    hf, gguf = f"{_LAYER}.mlp", f"{_BLOCK}.ffn"

    def part(role: str, shape: tuple[Dim, Dim]) -> tuple[Weight, Weight]:
        names = f"{hf}.{role}_proj", f"{gguf}_{role}"
        return linear(role, *names, shape, MLP, lambda config: config.mlp_bias, in_layer=has_mlp)

    before = gain("post_norm", f"{_LAYER}.{norm}", f"{_BLOCK}.{gguf_norm}", minus_one=minus_one)
    return (
        *([before] if norm is not None else []),
        *part("gate", (MLP, MODEL)),
        *part("up", (MLP, MODEL)),
        *part("down", (MODEL, MLP)),
    )


def output_norms(
    attention: str = "post_attention_layernorm",
    mlp: str = "post_feedforward_layernorm",
    minus_one: bool = False,
    present: Callable[[ModelConfig], bool] = always,
) -> tuple[Weight, Weight]:
    """The norms of what the sub-layers give, by their names in a layer."""
    return (
        gain(
            "attention_output_norm",
            f"{_LAYER}.{attention}",
            f"{_BLOCK}.post_attention_norm",
            present=present,
            minus_one=minus_one,
        ),
        gain("mlp_output_norm", f"{_LAYER}.{mlp}", f"{_BLOCK}.post_ffw_norm", present=present, minus_one=minus_one),
    )


def output(minus_one: bool = False) -> tuple[Weight, ...]:
    """The final norm and the output head, which has no weights of its own where it is tied to the embedding."""
    head = "lm_head.weight", "output.weight", (VOCABULARY, MODEL)
    return (
        gain("final_norm", "model.norm", "output_norm", minus_one=minus_one),
        Weight("head", *head, split=VOCABULARY, present=lambda config: not config.tie_embeddings),
    )


def one_qkv(weights: Sequence[Weight]) -> list[Weight]:
    """The same rows of families whose checkpoints and GGUF files have Q, K and V in one matrix."""
    names = f"{_LAYER}.self_attn.qkv_proj.weight", f"{_BLOCK}.attn_qkv.weight"
    return _within(weights, ("q", "k", "v"), *names, (QUERIES, KEYS, KEYS))


def one_gate_up(weights: Sequence[Weight], name: str = f"{_LAYER}.mlp.gate_up_proj.weight") -> list[Weight]:
    """The same rows of families whose checkpoints and GGUF files have gate and up in one matrix, these as ``name``."""
    return _within(weights, ("gate", "up"), name, f"{_BLOCK}.ffn_up.weight", (MLP, MLP))


def _within(
    weights: Sequence[Weight], roles: Sequence[str], name: str, gguf: str, heights: tuple[Dim, ...]
) -> list[Weight]:
    return [
        replace(
            row,
            packings=(Packing(name, heights, roles.index(row.role)),),
            gguf_packing=Packing(gguf, heights, roles.index(row.role)),
        )
        if row.role in roles
        else row
        for row in weights
    ]


def gain(
    role: str,
    name: str,
    gguf: str,
    dim: Dim = MODEL,
    present: Callable[[ModelConfig], bool] = always,
    minus_one: bool = False,
) -> Weight:
    """What a norm multiplies by."""
    return Weight(role, f"{name}.weight", f"{gguf}.weight", (dim,), gain_minus_one=minus_one, present=present)


def linear(
    role: str,
    name: str,
    gguf: str,
    shape: tuple[Dim, Dim],
    split: Dim | None,
    biased: Callable[[ModelConfig], bool],
    rotary_pairs: bool = False,
    in_layer: Callable[[ModelConfig, int], bool] = every_layer,
) -> tuple[Weight, Weight]:
    """A linear layer's matrix, and the bias ``{role}_bias`` of models that are ``biased``.

    Where ranks divide the rows, they divide the bias too. Where they divide the columns, their products are summed, and
    the bias is added to the sum.
    """
    by_columns = split is not None and split is not shape[0]
    return (
        Weight(role, f"{name}.weight", f"{gguf}.weight", shape, split, rotary_pairs=rotary_pairs, in_layer=in_layer),
        Weight(
            f"{role}_bias",
            f"{name}.bias",
            f"{gguf}.bias",
            shape[:1],
            split=None if by_columns else split,
            after_sum=by_columns,
            rotary_pairs=rotary_pairs,
            present=biased,
            in_layer=in_layer,
        ),
    )


def read_llama_like(
    fields: Fields,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = False,
    windows: Sequence[int | None] = (),
    theta: float = 10000.0,
    epsilon: float = 1e-6,
    experts: Experts | None = None,
    partial_rotary: float | None = None,
    rotary_neighbours: bool = False,
    unrotated: Sequence[int] = (),
    computes: Collection[str] = (),
) -> ModelConfig:
    """The configuration of a Llama-like model, from rope_theta and rope_scaling or rope_parameters (transformers 5).

    ``kv_heads``, ``head_dim``, ``theta``, ``epsilon`` and ``tied`` are what transformers takes where config.json does
    not say: by default as many as query heads, the model dimension divided by them, and false. ``windows``: the sliding
    window of every layer. ``partial_rotary``: of families that may rotate only a part of a head, which part by default.
    ``rotary_neighbours``, ``unrotated``: as :class:`ModelConfig` has them. ``computes``: keys of config.json that the
    family reads itself, and that mean nothing in others. Raises UserError for what the decoder does not compute and for
    impossible values.
    """
    _refuse_unsupported(fields, [*computes, *(EXPERT_COUNTS if experts is not None else ())])
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", kv_heads or heads)
    hidden = fields.size("hidden_size")
    head_dim = fields.size("head_dim", head_dim or hidden // heads)
    if heads % kv_heads:
        raise UserError(f"{fields.where}: {heads} attention heads do not divide into {kv_heads} key-value heads")
    if head_dim < 2 or head_dim % 2:
        raise UserError(f"{fields.where}: head_dim is {head_dim}, rotary positions need an even one")
    rotated = rotated_dims(fields, head_dim, partial_rotary)
    theta, scaling = read_rope(fields, rotated, theta)
    vocabulary = fields.size("vocab_size")
    positions = fields.size("max_position_embeddings") if scaling is None else scaling.context
    return ModelConfig(
        architecture=fields.text("model_type", ""),
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.positive("rms_norm_eps", epsilon),
        rope_theta=theta,
        rope_scaling=scaling,
        max_context=positions,
        tie_embeddings=fields.flag("tie_word_embeddings", tied),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        eos_token_ids=fields.token_ids("eos_token_id", vocabulary),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", vocabulary)), None),
        windows=tuple(windows) if any(windows) else (),
        experts=experts,
        rotary_dims=None if rotated == head_dim else rotated,
        rotary_neighbours=rotary_neighbours,
        unrotated=tuple(unrotated),
    )


def windows_by_type(fields: Fields, window: int | None, default: Sequence[bool]) -> list[int | None]:
    """The sliding window of every layer that ``layer_types`` says slides, or ``default`` where that is not there.

    Raises UserError for a layer of another type, and for a list that does not name every layer.
    """
    kinds = fields.get("layer_types")
    if kinds is None:
        return [window if slides else None for slides in default]
    listed = kinds if isinstance(kinds, list) else []
    unknown = sorted({str(kind) for kind in listed} - {"full_attention", "sliding_attention"})
    if unknown:
        raise UserError(f"{fields.where}: layer_types has '{unknown[0]}', which is not supported")
    if len(listed) != len(default):
        raise UserError(f"{fields.where}: layer_types must list the types of {len(default)} layers")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _refuse_unsupported(fields: Fields, computes: Collection[str]) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish") and "hidden_act" not in computes:
        raise UserError(f"{fields.where}: unsupported hidden_act '{activation}', only 'silu' is supported")
    quantization = quantization_of(fields.values)
    readable = is_float8(quantization) or is_mxfp4(quantization) or integer_layout(quantization) is not None
    if fields.get("quantization_config") is not None and not readable:
        method = quantization.get("quant_method")
        named = f"quantization_config, {method}" if method else "quantization_config"
        raise UserError(
            f"{fields.where}: the weights are quantized ({named}) in a form that is not read; use the unquantized "
            "checkpoint, one in FP8, MXFP4, 4 or 8 bits of GPTQ, AWQ or compressed-tensors, or a GGUF file"
        )
    for key, feature in _NOT_COMPUTED.items():
        if key not in computes and fields.get(key) not in (None, False, 0, []):
            raise UserError(f"{fields.where}: {feature} ({key}={fields.get(key)}) is not supported")
