"""Rotary positions of a GGUF file as config.json's ``rope_parameters``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.config_fields import Fields
from spec_sdk.model.gguf_reader import GGUFFile
from spec_sdk.model.rope_fields import TEMPERATURE

DIVISORS = "rope_freqs.weight"
"""Llama 3.1's rope scaling, stored by llama.cpp as one divisor per frequency [rotated/2]."""
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""LongRoPE's divisors [rotated/2], beyond and within the original context."""

_KINDS = ("none", "linear", "llama3", "yarn", "longrope")
_LLAMA3_LOW, _LLAMA3_HIGH = 1.0, 4.0
_LLAMA3_CONTEXTS = (8192, *(2**i for i in range(10, 20)))


def rope_parameters(gguf: GGUFFile, architecture: str, rotated: int) -> dict[str, Any]:
    """Base and scaling, from the metadata ``{architecture}.rope.*`` and the tensors of divisors.

    ``rotated``: the dimensions of a head that are rotated. Divisors that are not Llama 3's are kept as LongRoPE's are.
    Raises UserError for a kind of scaling that is not computed, and for one whose divisors are not there or not one for
    each frequency.
    """
    prefix = f"{architecture}.rope."
    rope = Fields(
        {key.removeprefix(prefix): value for key, value in gguf.metadata.items() if key.startswith(prefix)}, gguf.where
    )
    kind = rope.text("scaling.type", "linear")
    if kind not in _KINDS:
        raise UserError(f"{gguf.where}: unsupported rope scaling '{kind}'{did_you_mean(kind, _KINDS)}")
    positions = Fields(gguf.metadata, gguf.where).size(f"{architecture}.context_length")
    base = {"rope_theta": rope.positive("freq_base", 10000.0)}
    factor = rope.positive("scaling.factor", rope.positive("scale_linear", 1.0))
    ways = [kind] if kind == "yarn" or (kind == "linear" and factor != 1.0) else []
    ways += [name for name in (DIVISORS, LONG) if name in gguf.tensors]
    if len(ways) > 1:
        raise UserError(f"{gguf.where}: scales rotary positions twice ({' and '.join(ways)}), which is not supported")
    if LONG in gguf.tensors or SHORT in gguf.tensors or kind == "longrope":
        return base | _longrope(gguf, rope, positions, rotated)
    if kind == "yarn":
        return base | _yarn(rope, positions)
    if DIVISORS in gguf.tensors:
        context = rope.size("scaling.original_context_length", _LLAMA3_CONTEXTS[0])
        divisors = divisors_of(gguf, DIVISORS, rotated)
        scaling = _llama3_scaling(divisors, base["rope_theta"], rotated, context)
        if scaling is None:
            scaling = {
                "rope_type": "longrope",
                "long_factor": divisors,
                "short_factor": divisors,
                "original_max_position_embeddings": positions,
                "attention_factor": 1.0,
            }
        return base | scaling
    if kind == "llama3":
        raise UserError(f"{gguf.where}: has Llama 3's rope scaling but no {DIVISORS}")
    if factor != 1.0 and kind == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    return base | {"rope_type": "default"}


def growing_queries(gguf: GGUFFile, architecture: str, rope: Mapping[str, Any]) -> dict[str, float]:
    """What ``rope``, the file's rotary positions, say besides where queries grow beyond the original context.

    Raises UserError where these name no such context.
    """
    key, meta = f"{architecture}.attention.temperature_scale", Fields(gguf.metadata, gguf.where)
    growth = meta.number(key, 0.0)
    if not growth:
        return {}
    if "original_max_position_embeddings" not in rope:
        scaling = f"{architecture}.rope.scaling.type"
        raise UserError(
            f"{gguf.where}: {key} is {growth:g}, and there is no original context beyond which it counts: "
            f"{scaling} is '{meta.text(scaling, 'none')}', not 'yarn'"
        )
    return {TEMPERATURE: growth}


def _yarn(rope: Fields, positions: int) -> dict[str, Any]:
    if rope.number("scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise UserError(f"{rope.where}: rope.scaling.yarn_ext_factor is not supported")
    # what llama.cpp's converter copies from attention_factor; llama.cpp itself has attn_factor besides YaRN's own
    factor = rope.positive("scaling.factor")
    attention_factor = rope.get("scaling.yarn_attn_factor")
    if attention_factor is None and rope.get("scaling.attn_factor") is not None:
        attention_factor = (0.1 * math.log(max(factor, 1.0)) + 1.0) * rope.positive("scaling.attn_factor")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": rope.size("scaling.original_context_length", positions),
        "attention_factor": attention_factor,
        "beta_fast": rope.get("scaling.yarn_beta_fast"),
        "beta_slow": rope.get("scaling.yarn_beta_slow"),
    }
    if log_multiplier := rope.number("scaling.yarn_log_multiplier", 0.0):
        scaling |= {"mscale": 1.0, "mscale_all_dim": log_multiplier}
    return {key: value for key, value in scaling.items() if value is not None}


def _longrope(gguf: GGUFFile, rope: Fields, positions: int, rotated: int) -> dict[str, Any]:
    for name in (LONG, SHORT):
        if name not in gguf.tensors:
            raise UserError(f"{gguf.where}: has LongRoPE's scaling but no {name}")
    return {
        "rope_type": "longrope",
        "long_factor": divisors_of(gguf, LONG, rotated),
        "short_factor": divisors_of(gguf, SHORT, rotated),
        "original_max_position_embeddings": rope.size("scaling.original_context_length", positions),
        "attention_factor": rope.positive("scaling.attn_factor", 1.0),
    }


def divisors_of(gguf: GGUFFile, name: str, rotated: int) -> list[float]:
    """What a tensor says that each frequency is divided by. Raises UserError for one that is not one for each."""
    tensor = gguf.tensors[name]
    if tensor.kind != "F32":
        raise UserError(f"{gguf.where}: {name} is not stored as F32")
    if tensor.shape != (rotated // 2,):
        raise UserError(f"{gguf.where}: {name} has shape {list(tensor.shape)}, not [{rotated // 2}]")
    return list(gguf.raw(name).cast("f"))


def _llama3_scaling(factors: list[float], theta: float, rotated: int, context: int) -> dict[str, Any] | None:
    """The llama3 parameters whose divisors are ``factors`` (to float32 accuracy), or None if there are none.

    The divisors only fix context/low and context/high, so low and high are taken to be Llama 3's 1 and 4.
    """
    factor = max(factors)
    if all(value == 1.0 for value in factors):
        return {"rope_type": "default"}
    for candidate in (context, *_LLAMA3_CONTEXTS):
        expected = (_llama3_divisor(theta ** (2 * i / rotated), factor, candidate) for i in range(rotated // 2))
        if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(factors, expected, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": candidate,
            }
    return None


def _llama3_divisor(period: float, factor: float, context: int) -> float:
    """What a rotary frequency is divided by; ``period`` is its inverse, in tokens per radian."""
    wavelength = 2 * math.pi * period
    if wavelength < context / _LLAMA3_HIGH:
        return 1.0
    if wavelength > context / _LLAMA3_LOW:
        return factor
    blend = (context / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1.0 / ((1 - blend) / factor + blend)


def refuse_sections(gguf: GGUFFile, architecture: str) -> None:
    """Raise UserError for positions of several kinds, of which llama.cpp's converter puts rows in another order."""
    sections = gguf.metadata.get(f"{architecture}.rope.dimension_sections")
    if any(sections) if isinstance(sections, list) else sections:
        raise UserError(f"{gguf.where}: rotary positions of several kinds (rope.dimension_sections) are not supported")
