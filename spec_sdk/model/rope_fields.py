"""Base and scaling of rotary positions as config.json spells them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config import RopeScaling
from spec_sdk.model.config_fields import Fields

SPELLINGS = ("rope_scaling", "rope_parameters")
"""Where a config.json has the scaling; of both, transformers takes the first."""


PARTIAL = "partial_rotary_factor"
TEMPERATURE = "llama_4_scaling_beta"
"""By how much queries grow with positions beyond the context that a model was first trained for."""


def with_rope(fields: Fields, default: Mapping[str, Any]) -> Fields:
    """The same with this section, where they have none in either spelling."""
    if any(fields.get(spelling) for spelling in SPELLINGS):
        return fields
    return Fields({**fields.values, "rope_parameters": default}, fields.where)


def rotated_dims(fields: Fields, head_dim: int, default: float | None = None) -> int:
    """How many dimensions of a head are rotated: ``partial_rotary_factor`` of them.

    ``default``: the factor where config.json does not say, of families whose positions may be partial; None for
    families whose are not. Raises UserError for partial ones among these, and for dimensions that are no pairs.
    """
    section = _section(fields)
    factor = fields.positive(PARTIAL, default or 1.0)
    factor = factor if section is None else section.positive(PARTIAL, factor)
    if default is None and factor != 1.0:
        raise UserError(f"{fields.where}: partial rotary positions ({PARTIAL}) are not supported")
    # a quotient of two whole numbers, as GGUF files have it, may fall just short of one
    dims = int(head_dim * factor + 1e-6)
    if not 0 < dims <= head_dim or dims % 2:
        raise UserError(f"{fields.where}: {PARTIAL} {factor:g} rotates {dims} of a head's {head_dim} dimensions")
    return dims


def before_queries_grow(fields: Fields, positions: int) -> int:
    """``positions``, or as many as queries do not grow at (Llama 4's attention temperature, which is not computed)."""
    rope = _section(fields)
    if rope is None or rope.number(TEMPERATURE, 0.0) == 0.0:
        return positions
    return min(positions, rope.size("original_max_position_embeddings"))


def yarn_temperature(fields: Fields) -> float:
    """What YaRN's ``mscale_all_dim`` scales queries and keys by, beside their cosines and sines."""
    rope = _section(fields)
    if rope is None or _kind(rope) == "default" or not rope.get("mscale_all_dim"):
        return 1.0
    return _temperature(rope.number("mscale_all_dim"), rope.positive("factor"))


def _section(fields: Fields) -> Fields | None:
    key = next((k for k in SPELLINGS if fields.get(k)), None)
    return None if key is None else fields.section(key)


def _kind(rope: Fields) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def ropes_by_type(fields: Fields, theta: float, windowed_theta: float) -> tuple[Fields, Fields]:
    """The configuration as layers without a window read it, and as those with one do: rotary positions of their own.

    The bases are those where ``rope_parameters`` do not say; ``rope_scaling`` stretches layers without a window alone.
    """
    kinds = ("full_attention", "sliding_attention")
    whole = {key: value for key, value in fields.values.items() if key not in SPELLINGS}
    plain: dict[str, Any] = {"rope_scaling": fields.get("rope_scaling")}
    windowed: dict[str, Any] = {}
    if fields.get("rope_parameters"):
        by_kind = fields.section("rope_parameters")
        if unknown := sorted(by_kind.values.keys() - kinds):
            raise UserError(f"{by_kind.where}: has {unknown[0]}, where {' and '.join(kinds)} are read")
        plain, windowed = ({"rope_parameters": by_kind.get(kind)} for kind in kinds)
        if fields.get("rope_scaling"):
            full = by_kind.section(kinds[0]).values if by_kind.get(kinds[0]) else {}
            plain = {"rope_parameters": {**full, **fields.section("rope_scaling").values}}
    bases = {"rope_theta": theta}, {"rope_theta": windowed_theta}
    found = [Fields({**whole, **base, **own}, fields.where) for base, own in zip(bases, (plain, windowed), strict=True)]
    return found[0], found[1]


def read_rope(fields: Fields, rotated: int, default_theta: float = 10000.0) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from rope_theta and rope_scaling or, without the latter, from rope_parameters (transformers 5).

    ``rotated``: the dimensions of a head that are rotated. The scaling's ``context`` is the model's own:
    ``max_position_embeddings``, and with YaRN the original context times the factor where that is more. Raises
    UserError for a kind of scaling that is not computed, and for parameters that differ between layers.
    """
    rope = _section(fields)
    if rope is None:
        return fields.positive("rope_theta", default_theta), None
    if any(isinstance(value, Mapping) for value in rope.values.values()):
        raise UserError(f"{rope.where}: they differ between layers, which is not supported")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", default_theta))
    kind = _kind(rope)
    if kind == "default":
        return theta, None
    if kind not in _READERS:
        known = ["default", *(name for name in _READERS if name != "su")]
        raise UserError(f"{fields.where}: unsupported rope type '{kind}'{did_you_mean(kind, known)}")
    if rotated <= 2 or theta <= 1:
        raise UserError(
            f"{rope.where}: {kind} takes a rope_theta above 1 and heads of 4 or more, not {theta}, {rotated}"
        )
    return theta, _READERS[kind](fields, rope, rotated)


def _linear(fields: Fields, rope: Fields, head_dim: int) -> RopeScaling:
    positions = _positions(fields)
    return RopeScaling("linear", rope.positive("factor"), original_max_position=positions, context=positions)


def _dynamic(fields: Fields, rope: Fields, head_dim: int) -> RopeScaling:
    positions = _positions(fields)
    return RopeScaling("dynamic", rope.positive("factor"), original_max_position=positions, context=positions)


def _llama3(fields: Fields, rope: Fields, head_dim: int) -> RopeScaling:
    factor, low, high = (rope.positive(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise UserError(f"{rope.where}: high_freq_factor {high} must exceed low_freq_factor {low}")
    return RopeScaling("llama3", factor, low, high, _original(fields, rope), context=_positions(fields))


def _yarn(fields: Fields, rope: Fields, head_dim: int) -> RopeScaling:
    original, positions = _original(fields, rope), _positions(fields)
    factor = rope.positive("factor", positions / original)
    # an explicit 0 means the default to transformers
    fast, slow = (rope.number(key) if rope.get(key) else default for key, default in _YARN_BETAS.items())
    if not 0 < slow <= fast:
        raise UserError(f"{rope.where}: beta_fast {fast} must not be less than beta_slow {slow}, both above 0")
    return RopeScaling(
        "yarn",
        factor,
        original_max_position=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.flag("truncate", True),
        context=max(positions, int(original * factor)),
    )


_YARN_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    """What YaRN multiplies cosines and sines with: §3.4's temperature, unless the file says it.

    With both ``mscale`` and ``mscale_all_dim`` (DeepSeek) it is the ratio of two of them.
    """
    if rope.get("attention_factor") is not None:
        return rope.positive("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _temperature(rope.number("mscale"), factor) / _temperature(rope.number("mscale_all_dim"), factor)
    return _temperature(1.0, factor)


def _temperature(weight: float, factor: float) -> float:
    """YaRN's, 0.1 ln(factor) + 1 (§3.4), whose logarithm has a weight."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(fields: Fields, rope: Fields, head_dim: int) -> RopeScaling:
    original, positions = _original(fields, rope), _positions(fields)
    for key in ("short_mscale", "long_mscale"):
        if rope.get(key) is not None:
            raise UserError(f"{rope.where}: {key} is not supported")
    factor = rope.positive("factor", positions / original)
    if original < 2:
        raise UserError(f"{rope.where}: original_max_position_embeddings is {original}, not 2 or more")
    # Ding et al. 2024, and Phi-3's own code
    attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeScaling(
        "longrope",
        factor,
        original_max_position=original,
        attention_factor=rope.positive("attention_factor", attention_factor),
        short_factors=_per_pair(rope, "short_factor", head_dim),
        long_factors=_per_pair(rope, "long_factor", head_dim),
        context=positions,
    )


def _per_pair(rope: Fields, key: str, head_dim: int) -> tuple[float, ...]:
    values = rope.get(key)
    if not isinstance(values, list) or len(values) != head_dim // 2:
        length = f"a list of {len(values)}" if isinstance(values, list) else repr(values)
        raise UserError(f"{rope.where}: {key} is {length}, not a list of {head_dim // 2} numbers")
    numbers = Fields({f"{key}[{i}]": value for i, value in enumerate(values)}, rope.where)
    return tuple(numbers.positive(name) for name in numbers.values)


def _positions(fields: Fields) -> int:
    return fields.size("max_position_embeddings")


def _original(fields: Fields, rope: Fields) -> int:
    """The context that the model was first trained for. Phi-3 has it beside the scaling, which goes first."""
    name = "original_max_position_embeddings"
    return fields.size(name, rope.size(name, _positions(fields)))


_READERS: Mapping[str, Callable[[Fields, Fields, int], RopeScaling]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "dynamic": _dynamic,
}
"""By the value of ``rope_type``; ``su`` is what the first Phi-3 files call ``longrope``."""
