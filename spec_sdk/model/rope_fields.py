"""Base and scaling of rotary positions as config.json spells them."""

from __future__ import annotations

from collections.abc import Mapping

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config import RopeScaling
from spec_sdk.model.config_fields import Fields


def read_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from rope_theta and rope_scaling or from rope_parameters (transformers 5).

    Raises UserError for a kind of scaling that is not computed, and for parameters that differ between layers.
    """
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
