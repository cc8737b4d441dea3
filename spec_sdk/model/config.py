"""What a checkpoint says of its model: shapes, rotary positions, and which optional parts it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
class EncoderConfig:
    """The encoder of an encoder–decoder model, to whose output every decoder block has a cross-attention.

    ``features`` and ``input_frames``: height and length of what it is given, for speech mel bins and frames;
    ``frames``: the states that it makes of them.
    """

    num_layers: int
    num_heads: int
    intermediate_size: int
    features: int
    input_frames: int
    frames: int


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-family model: its sizes, and which parts its blocks have. Names follow Hugging Face's config.json.

    ``architecture``: the ``model_type`` of config.json, by which :mod:`spec_sdk.model.architectures` knows its weights.
    ``max_context``: the most tokens that may be in the cache: the trained positions, or the sliding window if the model
    uses a smaller one (inside its window a sliding model equals a full one). ``encoder``: that of an encoder–decoder
    model, of which all else describes the decoder.
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
    encoder: EncoderConfig | None = None
