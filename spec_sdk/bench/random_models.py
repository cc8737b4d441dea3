"""Decoders of random weights in the shapes of real models, made on the device: for what does not depend on values."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.architectures import read_config, weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import Decoder, TensorSource
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.ops import Ops
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix, bytes_of_group, scales_of_group

COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "tiny: 2 layers, hidden 64, 4/2 heads of 16, to try a benchmark",
        {
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 128,
            "vocab_size": 256,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        },
    ),
    "smollm2": (
        "SmolLM2-135M: 30 layers, hidden 576, 9/3 heads of 64",
        {
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "vocab_size": 49152,
            "rope_theta": 100000.0,
            "tie_word_embeddings": True,
        },
    ),
    "1b": (
        "1B: 16 layers, hidden 2,048, 32/8 heads of 64",
        {
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
    ),
    "8b": (
        "8B: 32 layers, hidden 4,096, 32/8 heads of 128",
        {
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        },
    ),
}


DEVIATION = 0.02
"""Of a random weight."""


def random_matrix(outputs: int, inputs: int, bits: int, device: torch.device) -> QuantizedMatrix:
    """Symmetric, as Q4_0's: codes that are spread evenly, with one scale. ``inputs``: whole groups of 32."""
    groups = inputs // GROUP
    codes_OC = torch.randint(256, (outputs, groups * bytes_of_group(bits)), dtype=torch.uint8, device=device)
    scale_OS = torch.full((outputs, groups * scales_of_group(bits)), DEVIATION * 12**0.5 / 2**bits, device=device)
    return QuantizedMatrix(codes_OC.view(torch.int8) if bits == 8 else codes_OC, scale_OS.half())


class RandomTensors(TensorSource):
    """A checkpoint of random weights, made tensor by tensor on the device as they are asked for. ``bits``: of matrices,
    if they are in few, symmetric as Q4_0's; None for floating point.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype, bits: int | None = None) -> None:
        self.config = config
        self._shapes = weights_of(config).shapes
        self._device, self._dtype, self._bits = device, dtype, bits

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        return torch.randn(shape, device=self._device, dtype=self._dtype).mul_(DEVIATION)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        shape, bits = self._shapes[name], self._bits
        if bits is None or len(shape) != 2 or shape[1] % GROUP:
            return None
        return random_matrix(*shape, bits, self._device)

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)


def hf_fields(shape: str) -> dict[str, Any]:
    """What ``config.json`` of a model of this shape holds."""
    return {**COMMON, **SHAPES[shape][1]}


def random_decoder(shape: str, device: torch.device, dtype: torch.dtype, ops: Ops, bits: int | None = None) -> Decoder:
    """A decoder of one of SHAPES, of the same weights every time; ``bits`` as of :class:`RandomTensors`."""
    config = read_config(hf_fields(shape), f"shape {shape}")
    torch.manual_seed(0)
    return load_decoder(RandomTensors(config, device, dtype, bits), device, dtype, ops)


def bytes_per_pass(decoder: Decoder) -> int:
    """Bytes of the weights that every pass reads, sequential or not: what memory traffic alone would take."""
    return sum(projection.nbytes for projection in decoder.projections)
