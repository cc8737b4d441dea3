"""Whisper (and distil-whisper): an encoder of speech, and a decoder that attends to it. No GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_sdk.errors import UserError
from spec_sdk.model.config import EncoderConfig, ModelConfig
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.family import Family
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.weight_table import MLP, MODEL, QUERIES, VOCABULARY, Dim, Weight, decoder_layers

FRAMES_PER_STATE = 2
"""The second convolution's stride."""


def _encoder(config: ModelConfig) -> EncoderConfig:
    assert config.encoder is not None, "a Whisper model has an encoder"
    return config.encoder


def _encoder_layers(config: ModelConfig) -> int:
    return _encoder(config).num_layers


POSITIONS = Dim("positions", lambda config: config.max_context)
FEATURES = Dim("features", lambda config: _encoder(config).features)
FRAMES = Dim("frames", lambda config: _encoder(config).frames)
ENCODER_MLP = Dim("encoder mlp", lambda config: _encoder(config).intermediate_size)
KERNEL = Dim("kernel", lambda config: 3)


def _read_config(fields: Fields) -> ModelConfig:
    activation = fields.text("activation_function", "gelu")
    if activation != "gelu":
        raise UserError(f"{fields.where}: unsupported activation_function '{activation}', only 'gelu' is supported")
    if fields.get("quantization_config") is not None:
        raise UserError(
            f"{fields.where}: the weights are quantized (quantization_config); use the unquantized checkpoint"
        )
    hidden, vocabulary = fields.size("d_model", 384), fields.size("vocab_size", 51865)
    heads, encoder_heads = fields.size("decoder_attention_heads", 6), fields.size("encoder_attention_heads", 6)
    for key, count in (("decoder_attention_heads", heads), ("encoder_attention_heads", encoder_heads)):
        if hidden % count:
            raise UserError(f"{fields.where}: d_model {hidden} does not divide into {count} {key}")
    frames = fields.size("max_source_positions", 1500)
    return ModelConfig(
        architecture=fields.text("model_type", ""),
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=fields.size("decoder_ffn_dim", 1536),
        num_layers=fields.size("decoder_layers", 4),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        # of its layer norms; no checkpoint says otherwise
        rms_norm_eps=1e-5,
        # positions are learned
        rope_theta=1.0,
        rope_scaling=None,
        max_context=fields.size("max_target_positions", 448),
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        qk_norm=False,
        eos_token_ids=fields.token_ids("eos_token_id", vocabulary),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", vocabulary)), None),
        encoder=EncoderConfig(
            num_layers=fields.size("encoder_layers", 4),
            num_heads=encoder_heads,
            intermediate_size=fields.size("encoder_ffn_dim", 1536),
            features=fields.size("num_mel_bins", 80),
            input_frames=FRAMES_PER_STATE * frames,
            frames=frames,
        ),
    )


def _no_gguf(gguf: GGUFFile) -> dict[str, Any]:
    raise UserError(f"{gguf.where}: Whisper is not read from GGUF files; use its Hugging Face checkpoint")


Layers = Callable[[ModelConfig], int]


def _biased(role: str, name: str, shape: tuple[Dim, ...], layers: Layers) -> tuple[Weight, Weight]:
    return (
        Weight(role, f"{name}.weight", "", shape, layers=layers),
        Weight(f"{role}_bias", f"{name}.bias", "", shape[:1], layers=layers),
    )


def _attention(role: str, name: str, layers: Layers) -> tuple[Weight, ...]:
    """Q, K, V and output, of which K alone has no bias."""
    return (
        *_biased(f"{role}q", f"{name}.q_proj", (QUERIES, MODEL), layers),
        Weight(f"{role}k", f"{name}.k_proj.weight", "", (QUERIES, MODEL), layers=layers),
        *_biased(f"{role}v", f"{name}.v_proj", (QUERIES, MODEL), layers),
        *_biased(f"{role}o", f"{name}.out_proj", (MODEL, QUERIES), layers),
    )


def _block(role: str, name: str, mlp: Dim, layers: Layers) -> tuple[Weight, ...]:
    """Self-attention and MLP, each with the norm before it."""
    return (
        *_biased(f"{role}input_norm", f"{name}.self_attn_layer_norm", (MODEL,), layers),
        *_attention(role, f"{name}.self_attn", layers),
        *_biased(f"{role}post_norm", f"{name}.final_layer_norm", (MODEL,), layers),
        *_biased(f"{role}up", f"{name}.fc1", (mlp, MODEL), layers),
        *_biased(f"{role}down", f"{name}.fc2", (MODEL, mlp), layers),
    )


_ENCODER, _DECODER = "model.encoder", "model.decoder"
_BLOCK = f"{_DECODER}.layers.{{layer}}"

FAMILY = Family(
    model_types=("whisper",),
    gguf_architectures=(),
    read_config=_read_config,
    read_gguf=_no_gguf,
    weights=(
        Weight("embedding", f"{_DECODER}.embed_tokens.weight", "", (VOCABULARY, MODEL)),
        Weight("positions", f"{_DECODER}.embed_positions.weight", "", (POSITIONS, MODEL)),
        *_biased("encoder_conv1", f"{_ENCODER}.conv1", (MODEL, FEATURES, KERNEL), decoder_layers),
        *_biased("encoder_conv2", f"{_ENCODER}.conv2", (MODEL, MODEL, KERNEL), decoder_layers),
        Weight("encoder_positions", f"{_ENCODER}.embed_positions.weight", "", (FRAMES, MODEL)),
        *_block("encoder_", f"{_ENCODER}.layers.{{layer}}", ENCODER_MLP, _encoder_layers),
        *_biased("encoder_norm", f"{_ENCODER}.layer_norm", (MODEL,), decoder_layers),
        *_block("", _BLOCK, MLP, decoder_layers),
        *_biased("cross_norm", f"{_BLOCK}.encoder_attn_layer_norm", (MODEL,), decoder_layers),
        *_attention("cross_", f"{_BLOCK}.encoder_attn", decoder_layers),
        *_biased("final_norm", f"{_DECODER}.layer_norm", (MODEL,), decoder_layers),
        Weight("head", "proj_out.weight", "", (VOCABULARY, MODEL), present=lambda config: not config.tie_embeddings),
    ),
)
