"""What the Gemma families share: scaled embeddings, gains around one, a GELU in the MLP, norms after the sub-layers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.llama_like import output_norms as norms_of_outputs
from spec_sdk.model.weight_table import Weight

GELU_TANH = "gelu_pytorch_tanh"
_SCALE = "query_pre_attn_scalar"


def gemma_weights(output_norms: bool) -> tuple[Weight, ...]:
    """The table of a Gemma. ``output_norms``: each sub-layer has a norm before it and one after it (Gemma 2 and 3)."""
    if not output_norms:
        return (*embedding(), *attention(minus_one=True), *mlp(minus_one=True), *output(minus_one=True))
    return (
        *embedding(),
        *attention(minus_one=True),
        *mlp("pre_feedforward_layernorm", minus_one=True),
        *norms_of_outputs(minus_one=True),
        *output(minus_one=True),
    )


def read_gemma_like(
    fields: Fields,
    activation: str,
    *,
    kv_heads: int,
    qk_norm: bool = False,
    output_norms: bool = True,
    windows: Sequence[int | None] = (),
    computes: Collection[str] = (),
) -> ModelConfig:
    """The configuration of a Gemma. ``activation`` is what config.json says of it; the rest as :func:`read_llama_like`.

    Raises UserError for what the decoder does not compute and for impossible values.
    """
    if activation != GELU_TANH:
        raise UserError(f"{fields.where}: unsupported activation '{activation}', a Gemma's is '{GELU_TANH}'")
    if fields.flag("use_bidirectional_attention", False):
        raise UserError(f"{fields.where}: attention to later tokens (use_bidirectional_attention) is not supported")
    bias = fields.flag("attention_bias", False)
    config = read_llama_like(
        fields,
        kv_heads=kv_heads,
        head_dim=256,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=qk_norm,
        tied=True,
        windows=windows,
        computes={"hidden_act", *computes},
    )
    return replace(
        config,
        embedding_scale=config.hidden_size**0.5,
        activation="gelu_tanh",
        output_norms=output_norms,
        attention_scale=_scale(fields, config.head_dim) if _SCALE in computes else None,
    )


def softcap(fields: Fields, key: str, default: float | None) -> float | None:
    """A cap; None where it is null (``default`` where it is missing)."""
    missing = key not in fields.values
    return default if missing else None if fields.get(key) is None else fields.positive(key)


def pre_attention_scalar(gguf: GGUFFile, largest: int, head_dim: int) -> float:
    """Gemma's ``query_pre_attn_scalar``, which GGUF files do not have: the head dim, but in a family's largest model.

    That one, known by having ``largest`` layers, scales by model dim over heads, as in llama.cpp.
    """
    meta = Fields(gguf.metadata, gguf.where)
    name = meta.text("general.architecture", "")
    if meta.size(f"{name}.block_count") != largest:
        return head_dim
    return meta.size(f"{name}.embedding_length") // meta.size(f"{name}.attention.head_count")


def _scale(fields: Fields, head_dim: int) -> float | None:
    """Of attention scores; None for the usual one."""
    scalar = fields.positive(_SCALE, 256)
    return None if scalar == head_dim else scalar**-0.5
