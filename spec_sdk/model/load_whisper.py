"""From a Whisper checkpoint's weights, by their roles, to encoder and decoder."""

from __future__ import annotations

from typing import Protocol

import torch

from spec_sdk.model.config import ModelConfig
from spec_sdk.model.whisper_decoder import CrossAttention, WhisperBlock, WhisperDecoder
from spec_sdk.model.whisper_encoder import EncoderBlock, GeluMlp, LayerNorm, WhisperEncoder
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection


class WeightsByRole(Protocol):
    """A checkpoint's weights on the device."""

    def __contains__(self, role: str) -> bool: ...

    def read(self, role: str, layer: int = 0) -> torch.Tensor: ...

    def head(self, embedding: Embedding) -> Projection: ...

    def projection(self, layer: int, *roles: str, bias_O: torch.Tensor | None = None) -> Projection:
        """A layer's linear layers of one input, one below the other."""


def load_whisper(config: ModelConfig, weights: WeightsByRole, embedding: Embedding) -> WhisperDecoder:
    """Decoder and encoder, with Q, K and V fused."""
    assert config.encoder is not None
    parts = _Parts(config, weights)
    encoder = WhisperEncoder(
        heads=config.encoder.num_heads,
        convolutions=(parts.convolution("encoder_conv1"), parts.convolution("encoder_conv2")),
        positions_FM=weights.read("encoder_positions"),
        blocks=[
            EncoderBlock(
                norm=parts.norm("encoder_input_norm", i),
                qkv=parts.joined(i, "encoder_q", "encoder_k", "encoder_v"),
                output=parts.joined(i, "encoder_o"),
                mlp=parts.mlp(i, "encoder_"),
            )
            for i in range(config.encoder.num_layers)
        ],
        norm=parts.norm("encoder_norm"),
    )
    blocks = [
        WhisperBlock(
            norm=parts.norm("input_norm", i),
            qkv=parts.joined(i, "q", "k", "v"),
            output=parts.joined(i, "o"),
            cross=CrossAttention(
                norm=parts.norm("cross_norm", i),
                query=parts.joined(i, "cross_q"),
                kv=parts.joined(i, "cross_k", "cross_v"),
                output=parts.joined(i, "cross_o"),
            ),
            mlp=parts.mlp(i, ""),
        )
        for i in range(config.num_layers)
    ]
    return WhisperDecoder(
        config,
        blocks,
        embedding,
        weights.read("positions"),
        parts.norm("final_norm"),
        weights.head(embedding),
        encoder,
    )


class _Parts:
    def __init__(self, config: ModelConfig, weights: WeightsByRole) -> None:
        self._eps, self._weights = config.rms_norm_eps, weights

    def norm(self, role: str, layer: int = 0) -> LayerNorm:
        return LayerNorm(self._weights.read(role, layer), self._weights.read(f"{role}_bias", layer), self._eps)

    def convolution(self, role: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self._weights.read(role), self._weights.read(f"{role}_bias")

    def joined(self, layer: int, *roles: str) -> Projection:
        """Linear layers of one input, one below the other; K, which has no bias, gets zeros."""
        weights = self._weights
        biases = [
            weights.read(bias, layer)
            if (bias := f"{role}_bias") in weights
            else torch.zeros_like(weights.read(role, layer)[:, 0])
            for role in roles
        ]
        return weights.projection(layer, *roles, bias_O=torch.cat(biases))

    def mlp(self, layer: int, prefix: str) -> GeluMlp:
        return GeluMlp(
            norm=self.norm(f"{prefix}post_norm", layer),
            up=self.joined(layer, f"{prefix}up"),
            down=self.joined(layer, f"{prefix}down"),
        )
