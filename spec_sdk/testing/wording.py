"""How messages of the kit name what a plugin was tried with."""

from __future__ import annotations

from spec_sdk.contracts import SamplingParams


def words_of(params: SamplingParams) -> str:
    """``greedy``, or ``temperature 0.7, top-p 0.9``: the parameters that are not as they are by default."""
    plain = SamplingParams()
    names = ("top_k", "top_p", "min_p", "repetition_penalty")
    changed = [
        f"{name.replace('_', ' ' if name == 'repetition_penalty' else '-')} {getattr(params, name)}"
        for name in names
        if getattr(params, name) != getattr(plain, name)
    ]
    return ", ".join(["greedy" if params.temperature == 0 else f"temperature {params.temperature}", *changed])
