"""How a layer attends, what one attention call on part of the keys yields, and how a prediction compares with it.

Legend: B batch, N queries, H query heads, D head dim, C chunks of keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from spec_sdk.ops.uploads import numbers_on

Space = Literal["heads", "residual"]
SPACES: tuple[Space, ...] = ("heads", "residual")


@dataclass(frozen=True)
class AttentionSpec:
    """How a layer makes attention out of q·k, beside who sees whom.

    ``scale``: what q·k is multiplied by; None is 1/sqrt(D). ``softcap`` c: a scaled score s becomes c·tanh(s/c) (Gemma
    2, arXiv:2408.00118, §2). ``window``: a key is hidden from queries that stand so many positions after it, or more.
    Positions count along a path of the tree. ``sinks``: of every query head, the score of a key that all queries see,
    and whose value is 0 (gpt-oss, arXiv:2508.10925, §2.3); it is neither scaled nor capped.

    Raises ValueError for a scale that is not above 0.
    """

    scale: float | None = None
    softcap: float | None = None
    window: int | None = None
    sinks: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"attention's scale must be more than 0, not {self.scale}")

    def scale_for(self, head_dim: int) -> float:
        """What q·k is multiplied by, for heads of this size D."""
        return head_dim**-0.5 if self.scale is None else self.scale

    def sinks_H(self, device: torch.device) -> torch.Tensor | None:
        """``sinks`` in float32: do not write to them."""
        return None if self.sinks is None else _on_device(self.sinks, device)


# never let go: captured graphs read them
@functools.cache
def _on_device(numbers: tuple[float, ...], device: torch.device) -> torch.Tensor:
    return numbers_on(device, numbers, torch.float32)


PLAIN = AttentionSpec()
"""Scale 1/sqrt(D), nothing capped, every key in sight, no sinks."""


@dataclass(frozen=True)
class PartialAttention:
    """Attention over part of the keys, with the softmax statistics that let it be combined with the rest.

    ``o_BNHD`` normalised output over the keys seen, ``m_BNH`` their largest score, ``l_BNH`` sum of exp(score - m).
    """

    o_BNHD: torch.Tensor
    m_BNH: torch.Tensor
    l_BNH: torch.Tensor


@dataclass(frozen=True)
class SpeculativeAttention:
    """What one speculative attention call yields: the prediction, the exact attention, and how far they are apart.

    ``predicted_BNHD``, ``exact_BNHD``: normalised attention, in the dtype of the queries.
    ``difference_sq_BN``, ``norm_sq_BN``: ‖Â − A‖² and ‖A‖² in float32, over the H heads of a query together.
    ``chunk_lse_BNHC``: for predictors that learn, the log-sum-exp of the scaled scores over each chunk of *committed*
    keys (``Predictor.chunk`` keys each, the last one maybe fewer); tree slots belong to none.
    """

    predicted_BNHD: torch.Tensor
    exact_BNHD: torch.Tensor
    difference_sq_BN: torch.Tensor
    norm_sq_BN: torch.Tensor
    chunk_lse_BNHC: torch.Tensor | None = None

    @staticmethod
    def measured(
        predicted_BNHD: torch.Tensor,
        exact_BNHD: torch.Tensor,
        dtype: torch.dtype,
        chunk_lse_BNHC: torch.Tensor | None = None,
    ) -> SpeculativeAttention:
        """Both attentions as ``dtype``, with the two squared norms taken in float32 before they are rounded to it."""
        exact = exact_BNHD.float()
        return SpeculativeAttention(
            predicted_BNHD=predicted_BNHD.to(dtype),
            exact_BNHD=exact_BNHD.to(dtype),
            difference_sq_BN=(predicted_BNHD.float() - exact).square().sum((-1, -2)),
            norm_sq_BN=exact.square().sum((-1, -2)),
            chunk_lse_BNHC=chunk_lse_BNHC,
        )


class Ends(NamedTuple):
    """How many committed keys count as the two ends of a prefix: the ``first`` ones and the ``last`` ones."""

    first: int
    last: int

    @staticmethod
    def of(ends: int | Ends) -> Ends:
        """Two ends; of a number, so many keys each."""
        return Ends(ends, ends) if isinstance(ends, int) else ends

    @property
    def keys(self) -> int:
        return self.first + self.last


Announce = Callable[[torch.Tensor], None]
"""Called once, with a prediction [B, N, H, D], as soon as there is one: another device may go on with it already."""


@dataclass(frozen=True)
class AttentionVerdict:
    """``hit_B``: which requests go on with the prediction, bool [B]: a tensor, so that no device has to be waited for.

    ``error_BN``: the relative error ‖Â − A‖ / ‖A‖ per request and row.
    """

    hit_B: torch.Tensor
    error_BN: torch.Tensor


def relative_error(difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> torch.Tensor:
    """‖Â − A‖ / ‖A‖ from the two squared norms. 0 where both are zero."""
    return (difference_sq_BN / norm_sq_BN.clamp_min(torch.finfo(torch.float32).tiny)).sqrt()
