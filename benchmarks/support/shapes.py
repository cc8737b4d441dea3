"""Shapes of models that GGUF files of random weights are made of, by what ``benchmarks.gguf_mixes`` calls them."""

from __future__ import annotations

from benchmarks.support.gemma4_shape import Gemma4Shape
from benchmarks.support.latent_shapes import LatentShape
from benchmarks.support.random_gguf import Shape
from benchmarks.support.recurrent_shapes import ConvolutionShape, DeltaShape, SideBySideShape

SHAPES = {
    "llama_1b": Shape("a Llama of 1B", "llama", 2048, 8192, 16, 32, 8, 64, 32000),
    "gemma3_1b": Shape(
        "a Gemma 3 of 1B",
        "gemma3",
        *(1152, 6912, 26, 4, 1, 256, 262144),
        {"attn_q_norm": 256, "attn_k_norm": 256, "post_attention_norm": 1152, "post_ffw_norm": 1152},
        window=512,
    ),
    "gemma4_e2b": Gemma4Shape(
        "a Gemma 4 E2B",
        "gemma4",
        *(1536, 6144, 35, 8, 1, 256, 32000),
        {"post_attention_norm": 1536, "post_ffw_norm": 1536},
        window=512,
        shared=20,
        given=256,
    ),
    "qwen3_30b_a3b": Shape(
        "6 of 48 layers of Qwen 3 30B-A3B",
        "qwen3moe",
        *(2048, 768, 6, 32, 4, 128, 32000),
        {"attn_q_norm": 128, "attn_k_norm": 128},
        experts=128,
        per_token=8,
    ),
    "gpt_oss_20b": Shape(
        "6 of 24 layers of gpt-oss 20B",
        "gpt-oss",
        *(2880, 2880, 6, 64, 8, 64, 32000),
        window=128,
        experts=32,
        per_token=4,
        second_norm="post_attention_norm",
        tied=False,
        biased=True,
    ),
    "qwen3_5_0_8b": DeltaShape(
        "a Qwen 3.5 of 0.8B",
        "qwen35",
        *(1024, 3584, 24, 8, 2, 256, 32000),
        {"attn_q_norm": 256, "attn_k_norm": 256},
        second_norm="post_attention_norm",
        interval=4,
    ),
    "falcon_h1_0_5b": SideBySideShape("a Falcon H1 of 0.5B", "falcon-h1", *(1024, 2048, 36, 8, 2, 64, 32000)),
    "lfm2_1_2b": ConvolutionShape(
        "an LFM2 of 1.2B",
        "lfm2",
        *(2048, 8192, 16, 32, 8, 64, 32000),
        {"attn_q_norm": 64, "attn_k_norm": 64},
        interval=3,
    ),
    "youtu_2b": LatentShape(
        "a Youtu of 2B",
        "deepseek2",
        *(2048, 6144, 32, 16, 1, 576, 32000),
        query_rank=1536,
        plain=128,
        value=128,
    ),
    "glm_4_7_flash": LatentShape(
        "6 of 47 layers of GLM 4.7 Flash",
        "deepseek2",
        *(2048, 1536, 6, 20, 1, 576, 32000),
        experts=64,
        per_token=4,
        tied=False,
        query_rank=768,
        plain=192,
        value=256,
        dense=10240,
    ),
}
"""All but the Gemma have smaller vocabularies than the real ones."""
