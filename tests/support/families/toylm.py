"""A Llama under other names, in config.json as in its tensors: what the addition of a family looks like."""

from __future__ import annotations

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.llama_like import gain, linear, read_llama_like
from spec_sdk.model.weight_table import KEYS, MLP, MODEL, QUERIES, VOCABULARY, Weight, always


def _read_config(fields: Fields) -> ModelConfig:
    return read_llama_like(fields, qkv_bias=True, o_bias=True, mlp_bias=True)


_HF, _GGUF = "transformer.h.{layer}", "blk.{layer}"

FAMILY = Family(
    model_types=("toylm", "toylm2"),
    gguf_architectures=("toylm",),
    read_config=_read_config,
    read_gguf=hf_config,
    weights=(
        Weight("embedding", "transformer.wte.weight", "token_embd.weight", (VOCABULARY, MODEL)),
        gain("input_norm", f"{_HF}.ln_1", f"{_GGUF}.attn_norm"),
        *linear("q", f"{_HF}.mixer.query", f"{_GGUF}.attn_q", (QUERIES, MODEL), QUERIES, always, rotary_pairs=True),
        *linear("k", f"{_HF}.mixer.key", f"{_GGUF}.attn_k", (KEYS, MODEL), KEYS, always, rotary_pairs=True),
        *linear("v", f"{_HF}.mixer.value", f"{_GGUF}.attn_v", (KEYS, MODEL), KEYS, always),
        *linear("o", f"{_HF}.mixer.out", f"{_GGUF}.attn_output", (MODEL, QUERIES), QUERIES, always),
        gain("post_norm", f"{_HF}.ln_2", f"{_GGUF}.mlp_norm"),
        *linear("gate", f"{_HF}.mlp.w1", f"{_GGUF}.mlp_gate", (MLP, MODEL), MLP, always),
        *linear("up", f"{_HF}.mlp.w3", f"{_GGUF}.mlp_up", (MLP, MODEL), MLP, always),
        *linear("down", f"{_HF}.mlp.w2", f"{_GGUF}.mlp_down", (MODEL, MLP), MLP, always),
        gain("final_norm", "transformer.ln_f", "output_norm"),
        Weight("head", "classifier.weight", "output.weight", (VOCABULARY, MODEL), split=VOCABULARY),
    ),
)
