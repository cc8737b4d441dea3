"""GGUF metadata as a Hugging Face config.json."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.gguf_rope import rope_parameters


def _one_of_all(value: Any) -> Any:
    """A list of what every layer has, where that is the same for all, as one."""
    return value[0] if isinstance(value, list) and value and all(each == value[0] for each in value) else value


def hf_config(
    gguf: GGUFFile, computes_experts: bool = False, partial_rotary: bool = False, latents: bool = False
) -> dict[str, Any]:
    """What the config.json of a Llama-like model would say, whatever its parts; experts are the family's business.

    ``partial_rotary``: whether the family may rotate only a part of a head. ``latents``: its heads are those of
    attention to latents, whose sizes are the family's business, too. Raises UserError for what the decoder cannot run
    or the file lacks.
    """
    where = gguf.where
    meta = Fields({name: _one_of_all(value) for name, value in gguf.metadata.items()}, where)
    architecture = meta.text("general.architecture", "")

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    for name in ("block_count", "attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(meta.get(key(name)), list):
            raise UserError(f"{where}: {key(name)} differs between layers, which is not supported")
    if meta.number(key("expert_count"), 0) and not computes_experts:
        raise UserError(f"{where}: mixture of experts ({key('expert_count')}) is not supported")
    if "token_embd.weight" not in gguf.tensors:
        raise UserError(f"{where}: has no tensor 'token_embd.weight', so it is no language model or has no weights")
    heads = meta.size(key("attention.head_count"))
    mlp = None
    if computes_experts:
        # where no layer has an MLP, a file may say nothing of it
        mlp = meta.size_if_any(key("expert_feed_forward_length"))
    hidden = meta.size(key("embedding_length"))
    rotated = meta.size(key("rope.dimension_count"), meta.size(key("attention.key_length"), hidden // heads))
    head_dim = meta.size(key("attention.key_length"), hidden // heads if partial_rotary else rotated)
    if latents:
        head_dim = rotated
    elif meta.size(key("attention.value_length"), head_dim) != head_dim:
        raise UserError(f"{where}: keys and values of different sizes are not supported")
    if rotated != head_dim and not partial_rotary:
        raise UserError(f"{where}: partial rotary positions ({key('rope.dimension_count')}) are not supported")
    return {
        "model_type": architecture,
        "vocab_size": gguf.shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": meta.size(key("feed_forward_length"), mlp),
        "num_hidden_layers": meta.size(key("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size(key("attention.head_count_kv"), heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "rms_norm_eps": meta.positive(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": meta.size(key("context_length")),
        "rope_parameters": rope_parameters(gguf, architecture, rotated)
        | ({"partial_rotary_factor": rotated / head_dim} if partial_rotary else {}),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }


def gguf_layer_types(gguf: GGUFFile, architecture: str, layers: int, interval: int = 4) -> list[str]:
    """Of each layer whether it has a window, as config.json says it: one in ``interval`` has none, unless the file says
    another one, or each layer's. Raises UserError for what says neither.
    """
    key = f"{architecture}.attention.sliding_window_pattern"
    said = gguf.metadata.get(key, interval)
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        said = [(layer + 1) % said != 0 for layer in range(layers)]
    if not isinstance(said, list) or len(said) != layers:
        raise UserError(f"{gguf.where}: {key} does not say of each of {layers} layers whether it has a window")
    return ["sliding_attention" if slides else "full_attention" for slides in said]


def layers_of(gguf: GGUFFile, architecture: str) -> int:
    """How many layers the model has: the file counts prediction modules among its blocks.

    Raises UserError for a file that says no number of blocks, or has as many prediction modules.
    """
    meta, key = Fields(gguf.metadata, gguf.where), f"{architecture}.nextn_predict_layers"
    blocks, modules = meta.size(f"{architecture}.block_count"), meta.count(key, 0)
    if modules >= blocks:
        raise UserError(f"{gguf.where}: {key} is {modules}, and must be less than {architecture}.block_count, {blocks}")
    return blocks - modules
