"""Which layers' attention can be predicted from few KV entries: those that attend plainly."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.errors import UserError
from spec_sdk.model.config import ModelConfig
from spec_sdk.ops.types import PLAIN


def check_predictable(config: ModelConfig, layers: int, chosen: Sequence[int], predictor: str) -> None:
    """Raise UserError for the first of the ``chosen`` layers, of so many, that no predictor computes, and say why.

    A prediction combines parts of the whole prefix under the usual scale; a window leaves little to save anyway.
    """
    others = [layer for layer in range(layers) if _peculiarity(config, layer) is not None]
    refused = next((layer for layer in chosen if layer in others), None)
    if refused is not None:
        left_out = f"attention_verifier.never={others}".replace(" ", "")
        remedy = "use predictor=none" if len(others) == layers else f"leave such layers out ({left_out})"
        raise UserError(
            f"predictor '{predictor}': layer {refused} of this {config.architecture} model has "
            f"{_peculiarity(config, refused)}, which is not predicted; {remedy}"
        )


def _peculiarity(config: ModelConfig, layer: int) -> str | None:
    """What a layer has that no predictor computes; None for plain attention."""
    spec = config.layer_kind(layer).attention
    if config.is_recurrent(layer):
        return f"a state {'beside' if config.has_attention(layer) else 'in the place of'} attention"
    if not config.has_attention(layer):
        return "no attention"
    if config.latent is not None:
        return "attention to latents"
    if config.attention_gate:
        return "attention with an output gate"
    if config.attention_sinks:
        return "attention sinks"
    if spec.window is not None:
        return f"a window of {spec.window} tokens"
    if spec.softcap is not None:
        return "soft-capped attention scores"
    return None if spec == PLAIN else "an attention scale of its own"
