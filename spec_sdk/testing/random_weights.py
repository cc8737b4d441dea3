"""A small model of random weights, without a checkpoint on disk."""

from __future__ import annotations

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.config import ModelConfig
from spec_sdk.model.decoder import TensorSource

TINY = ModelConfig(
    architecture="qwen3",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    max_context=256,
    tie_embeddings=False,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=False,
    qk_norm=True,
    eos_token_ids=(2,),
    bos_token_id=1,
)
"""All optional parts that a Qwen 3 can have, sizes that kernels are made for, and a context that is soon full."""


class RandomWeights(TensorSource):
    """The weights of a model of ``config``, drawn anew for every ``seed``, with values that ``dtype`` can hold.

    They are such that a token's logits depend on every token it sees: norms and biases are random, and attention is
    neither even nor on one key alone.
    """

    def __init__(self, config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.config = config
        rng = torch.Generator().manual_seed(seed)
        self._tensors: dict[str, torch.Tensor] = {}
        for name, shape in weights_of(config).shapes.items():
            noise = torch.randn(shape, generator=rng)
            if len(shape) > 1:
                values = noise * 2 * shape[-1] ** -0.5
            elif name.endswith("bias"):
                values = 0.2 * noise
            else:
                values = 1 + 0.2 * noise
            self._tensors[name] = values.to(dtype).float()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its Hugging Face name, in float32. Raises KeyError for a name that the model does not have."""
        return self._tensors[name]

    def names(self) -> frozenset[str]:
        """The Hugging Face names of all tensors."""
        return frozenset(self._tensors)
