"""What a checkpoint says of its model: shapes, rotary positions, and which optional parts it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_config import hf_config
from spec_sdk.model.gguf_reader import GGUFFile

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` that the decoder can run."""

_UNSUPPORTED_KEYS = {
    "attn_logit_softcapping": "attention logit softcapping",
    "final_logit_softcapping": "final logit softcapping",
    "query_pre_attn_scalar": "its own attention scale",
    "attention_multiplier": "its own attention scale",
    "logits_scaling": "scaled logits",
    "logit_scale": "scaled logits",
    "residual_multiplier": "scaled residuals",
    "embedding_multiplier": "scaled embeddings",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "no_rope_layers": "layers without rotary positions",
}


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
class ModelConfig:
    """A Llama-family model. Field names follow Hugging Face's config.json.

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

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], where: str) -> ModelConfig:
        """Read a Hugging Face ``config.json``: rope_theta/rope_scaling, or rope_parameters (transformers 5).

        A missing key means what it means to transformers. Raises UserError, naming ``where``, for an unsupported
        architecture or feature and for impossible values.
        """
        fields = Fields(config, where)
        architecture = _architecture(fields)
        _refuse_unsupported(fields)
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads if architecture == "llama" else _KV_HEADS[architecture])
        hidden = fields.size("hidden_size")
        head_dim = fields.size("head_dim", 128 if architecture == "qwen3" else hidden // heads)
        if heads % kv_heads:
            raise UserError(f"{where}: {heads} attention heads do not divide into {kv_heads} key-value heads")
        if head_dim < 2 or head_dim % 2:
            raise UserError(f"{where}: head_dim is {head_dim}, rotary positions need an even one")
        theta, scaling = _rope(fields)
        vocabulary = fields.size("vocab_size")
        attention_bias = architecture in ("llama", "qwen3") and fields.flag("attention_bias", False)
        return cls(
            architecture=architecture,
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_layers=fields.size("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            max_context=_max_context(fields, architecture),
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            qkv_bias=architecture == "qwen2" or attention_bias,
            o_bias=attention_bias,
            mlp_bias=architecture == "llama" and fields.flag("mlp_bias", False),
            qk_norm=architecture == "qwen3",
            eos_token_ids=fields.token_ids("eos_token_id", vocabulary),
            bos_token_id=next(iter(fields.token_ids("bos_token_id", vocabulary)), None),
        )

    @classmethod
    def from_gguf(cls, gguf: GGUFFile) -> ModelConfig:
        """Read the metadata of a GGUF file. Raises UserError as :meth:`from_hf` does."""
        return cls.from_hf(hf_config(gguf), gguf.where)


_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_WINDOW = 4096


def _architecture(fields: Fields) -> str:
    name = fields.text("model_type", "")
    if not name:
        raise UserError(f"{fields.where}: no model_type, so its architecture is unknown")
    if name not in ARCHITECTURES:
        hint = did_you_mean(name, ARCHITECTURES)
        supported = "" if hint.startswith(";") else f" (supported: {', '.join(ARCHITECTURES)})"
        raise UserError(f"{fields.where}: unsupported architecture '{name}'{hint}{supported}")
    return name


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UserError(f"{fields.where}: unsupported hidden_act '{activation}', only 'silu' is supported")
    if fields.get("quantization_config") is not None:
        raise UserError(
            f"{fields.where}: the weights are quantized (quantization_config); "
            "use the model's unquantized checkpoint or a GGUF file"
        )
    for key, feature in _UNSUPPORTED_KEYS.items():
        if fields.get(key) not in (None, False, 0, []):
            raise UserError(f"{fields.where}: {feature} ({key}={fields.get(key)}) is not supported")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{fields.where}: partial rotary positions (partial_rotary_factor) are not supported")


def _max_context(fields: Fields, architecture: str) -> int:
    positions = fields.size("max_position_embeddings")
    slides = architecture == "mistral" or (architecture in ("qwen2", "qwen3") and _qwen_slides(fields))
    window = fields.size_or_none("sliding_window", _DEFAULT_WINDOW) if slides else None
    return min(positions, window or positions)


def _qwen_slides(fields: Fields) -> bool:
    """Whether any layer of a Qwen model has a sliding window."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
        if unknown:
            raise UserError(f"{fields.where}: layer_types has '{unknown[0]}', which is not supported")
        return fields.flag("use_sliding_window", False) and "sliding_attention" in kinds
    full_layers = fields.number("max_window_layers", 28)
    return fields.flag("use_sliding_window", False) and full_layers < fields.size("num_hidden_layers")


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions, from either spelling."""
    key = next((k for k in ("rope_parameters", "rope_scaling") if fields.get(k)), None)
    if key is None:
        return fields.positive("rope_theta", 10000.0), None
    rope = fields.section(key)
    if any(isinstance(value, Mapping) for value in rope.values.values()):
        raise UserError(f"{fields.where}: {key} differ between layers, which is not supported")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{fields.where}: partial rotary positions (partial_rotary_factor) are not supported")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, None
    factor = rope.positive("factor") if kind in ("linear", "llama3") else 1.0
    if kind == "linear":
        return theta, RopeScaling("linear", factor)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if high <= low:
            raise UserError(f"{rope.where}: high_freq_factor {high} must exceed low_freq_factor {low}")
        return theta, RopeScaling("llama3", factor, low, high, rope.size("original_max_position_embeddings"))
    raise UserError(
        f"{fields.where}: unsupported rope type '{kind}'{did_you_mean(kind, ['default', 'linear', 'llama3'])}"
    )
