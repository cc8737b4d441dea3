"""Llama 2 and 3, SmolLM, and all that goes by their name: biases where config.json asks for them."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.llama_like import attention, embedding, mlp, output, read_llama_like
from spec_sdk.model.mixture import gguf_experts


def _read_config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return read_llama_like(fields, qkv_bias=bias, o_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def _read_gguf(gguf: GGUFFile) -> dict[str, Any]:
    config = hf_config(gguf, computes_experts=True)
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in gguf.tensors
    if mixture := gguf_experts(gguf, "llama"):
        if config["attention_bias"]:
            raise UserError(f"{gguf.where}: a mixture of experts with biases in attention is not supported")
        # llama.cpp writes Mixtral models as llama, the others with experts under names of their own
        mixture["num_local_experts"] = mixture.pop("num_experts")
        return config | mixture | {"model_type": "mixtral"}
    window = gguf.metadata.get("llama.attention.sliding_window")
    if window:
        # llama.cpp writes Mistral models as llama, and among them only these have a window
        config |= {"model_type": "mistral", "sliding_window": window}
    return config


FAMILY = Family(
    model_types=("llama",),
    gguf_architectures=("llama",),
    read_config=_read_config,
    read_gguf=_read_gguf,
    weights=(*embedding(), *attention(rotary_pairs=True), *mlp(), *output()),
)
