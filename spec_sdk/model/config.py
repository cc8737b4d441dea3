"""What a checkpoint says of its model: shapes, rotary positions, and which optional parts it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["linear", "llama3", "yarn", "longrope", "dynamic"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for a context longer than the trained one.

    ``linear`` divides all by ``factor``. ``llama3`` (Llama 3.1) divides only those whose wavelength exceeds
    ``original_max_position / low_freq_factor``, keeps those below ``original_max_position / high_freq_factor`` and
    interpolates between. ``yarn`` (Peng et al. 2023, §3.2) keeps those that turn more than ``beta_fast`` times in the
    original context, divides those that turn less than ``beta_slow`` times, and interpolates between; ``truncate``
    rounds the ramp's ends to whole dimensions. ``longrope`` (Ding et al. 2024) divides each by a number of its own, and
    ``dynamic`` (NTK-aware) raises the base as far as the context asks for.

    ``attention_factor`` multiplies cosines and sines. ``context``: the longest text that will be served, in tokens. In
    transformers the frequencies of ``longrope`` and ``dynamic`` follow the length that a text has reached, so that keys
    in a cache were rotated by other frequencies than those that come later. Here they follow from ``context``, once for
    all positions.
    """

    kind: RopeKind
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    context: int = 0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of MLPs: ``count`` of them, of which every token has ``per_token``.

    ``normalized``: the weights of a token's experts sum to 1. ``shared_intermediate_size``: of the expert that every
    token has besides, if there is one. ``layers``: those that have a mixture; the others have an MLP.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalized: bool
    shared_intermediate_size: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-family model: its sizes, and which parts its blocks have. Names follow Hugging Face's config.json.

    ``architecture``: the ``model_type`` of config.json, by which :mod:`spec_sdk.model.architectures` knows its weights.
    ``max_context``: the most tokens that may be in the cache: the trained positions, or the sliding window if the model
    uses a smaller one (inside its window a sliding model equals a full one).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    experts: Experts | None = None

    @property
    def longest_context(self) -> int:
        """The most that ``max_context`` may be set to.

        The rotary positions of ``linear`` and ``dynamic`` reach ``factor`` times as far as the checkpoint says it was
        trained for.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.kind not in ("linear", "dynamic"):
            return self.max_context
        # a sliding window that is shorter than the trained context stays the limit
        stretched = int(scaling.factor * scaling.original_max_position)
        return (
            max(self.max_context, stretched) if self.max_context == scaling.original_max_position else self.max_context
        )

    def of_layers(self, layers: Sequence[int]) -> ModelConfig:
        """The model made of only these of its layers, in this order."""
        experts = self.experts
        if experts is not None:
            sparse = tuple(i for i, layer in enumerate(layers) if layer in experts.layers)
            experts = dataclasses.replace(experts, layers=sparse)
        return dataclasses.replace(self, num_layers=len(layers), experts=experts)

    def within(self, context: int) -> ModelConfig:
        """The model for texts of at most ``context`` tokens, which its rotary frequencies may follow from."""
        scaling = self.rope_scaling and dataclasses.replace(self.rope_scaling, context=context)
        return dataclasses.replace(self, max_context=context, rope_scaling=scaling)
