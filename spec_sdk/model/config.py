"""What a checkpoint says of its model: shapes, rotary positions, attention, and which optional parts it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spec_sdk.ops.types import AttentionSpec


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for a longer context.

    ``linear`` divides all by ``factor``. ``llama3`` (Llama 3.1) divides only those whose wavelength exceeds
    ``original_max_position / low_freq_factor``, keeps those below ``original_max_position / high_freq_factor`` and
    interpolates between; the last three fields are its own and without meaning for ``linear``.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base of the frequencies, and how they are stretched."""

    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class LayerKind:
    """What layers of one model may differ in, beside their weights. Layers of one kind can be computed as one."""

    attention: AttentionSpec
    rope: Rope


Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-like model: its sizes, and which parts its blocks have. Names follow Hugging Face's config.json.

    ``architecture``: the ``model_type`` of config.json, by which :mod:`spec_sdk.model.architectures` knows its weights.
    ``max_context``: the most tokens that may be in the cache: the trained positions.

    ``windows``: the sliding window of every layer, None for those that see all; an empty tuple where all do.
    ``windowed_rope``: rotary positions of the layers with a window, where the others' are not theirs too.
    ``attention_scale``, ``attention_softcap``: of every layer's :class:`AttentionSpec`; ``logit_softcap``: the same for
    the logits. ``embedding_scale``: what embeddings are multiplied by, rounded to the model's dtype. ``output_norms``:
    what a sub-layer gives is normalized before it is added. ``prefix``: what stands before the name of every tensor.
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
    windows: tuple[int | None, ...] = ()
    windowed_rope: Rope | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    output_norms: bool = False
    prefix: str = ""

    def layer_kind(self, layer: int) -> LayerKind:
        """How this layer attends, and its rotary positions."""
        window = self.windows[layer] if self.windows else None
        rope = Rope(self.rope_theta, self.rope_scaling)
        if window is not None and self.windowed_rope is not None:
            rope = self.windowed_rope
        if window is not None and window >= self.max_context:
            # it hides nothing
            window = None
        return LayerKind(AttentionSpec(self.attention_scale, self.attention_softcap, window), rope)

    def of_layers(self, layers: Sequence[int]) -> ModelConfig:
        """The configuration of the model made of only these layers."""
        windows = tuple(self.windows[layer] for layer in layers) if self.windows else ()
        return replace(self, num_layers=len(layers), windows=windows)
