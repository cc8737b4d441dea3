"""What a sampler may not return: PluginFault names it. No check waits for a device.

Legend: N rows of logits, V vocabulary.
"""

from __future__ import annotations

import torch

from spec_sdk.errors import PluginFault


def as_probabilities(sampler: str, p_NV: object, logits_NV: torch.Tensor) -> torch.Tensor:
    """``p_NV``. Raises PluginFault for another type or shape than that of probabilities of these logits."""
    if isinstance(p_NV, torch.Tensor) and p_NV.shape == logits_NV.shape and p_NV.is_floating_point():
        return p_NV
    expected = f"floating-point of {list(logits_NV.shape)}, as the logits"
    raise PluginFault(f"sampler {sampler!r}: its probabilities are {_in_words(p_NV)}, they must be {expected}")


def as_choices(sampler: str, choice_N: object, logits_NV: torch.Tensor) -> torch.Tensor:
    """``choice_N``. Raises PluginFault for another type or shape than that of a token for each row of logits."""
    count = len(logits_NV)
    if isinstance(choice_N, torch.Tensor) and choice_N.shape == (count,) and not choice_N.is_floating_point():
        return choice_N
    raise PluginFault(f"sampler {sampler!r}: its choices are {_in_words(choice_N)}, they must be integers of [{count}]")


def no_distribution(sampler: str, row: int) -> PluginFault:
    """The fault of a sampler that makes no distribution of usable logits."""
    return PluginFault(f"sampler {sampler!r}: its probabilities of row {row} are NaN, infinite, or 0 for every token")


def usable(logits_V: torch.Tensor) -> bool:
    """Whether a distribution can be made of a row of logits. Waits for its device: for errors alone."""
    return bool(logits_V.max().isfinite())


def _in_words(given: object) -> str:
    if isinstance(given, torch.Tensor):
        return f"{given.dtype} of shape {list(given.shape)}"
    return f"of type {type(given).__name__}, and no tensor"
