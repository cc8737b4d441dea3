"""The tensors that a model of a given configuration consists of.

Shapes are [rows, columns], as torch's linear layers store them.
"""

from __future__ import annotations

from collections.abc import Mapping

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Hugging Face tensor name → shape of every tensor the decoder reads."""
    model, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, model)}
    block = _block_shapes(config)
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (model,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (vocabulary, model)
    return shapes


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    model, mlp = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (queries, model, config.qkv_bias),
        "self_attn.k_proj": (keys, model, config.qkv_bias),
        "self_attn.v_proj": (keys, model, config.qkv_bias),
        "self_attn.o_proj": (model, queries, config.o_bias),
        "mlp.gate_proj": (mlp, model, config.mlp_bias),
        "mlp.up_proj": (mlp, model, config.mlp_bias),
        "mlp.down_proj": (model, mlp, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {"input_layernorm.weight": (model,), "post_attention_layernorm.weight": (model,)}
    for name, (rows, columns, biased) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if biased:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def check_shapes(expected: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> None:
    """Raise UserError unless ``found`` has every expected tensor in its shape. More tensors may be there."""
    missing = [name for name in expected if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = ""
        if missing == ["lm_head.weight"]:
            hint = " (config.json says tie_word_embeddings=false, so the head needs weights of its own)"
        raise UserError(f"{where}: tensor '{missing[0]}'{more} is missing{hint}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise UserError(
                f"{where}: tensor '{name}' has shape {list(found[name])}, but the config asks for {list(shape)}"
            )
