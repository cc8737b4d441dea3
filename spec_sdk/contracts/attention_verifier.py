"""The contract of an attention verifier: whether predicted attention is close enough.

Legend: B batch, N tree nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from spec_sdk.guarantees import Guarantee
from spec_sdk.ops.types import AttentionVerdict, Space
from spec_sdk.plugin import Plugin


class AttentionVerifier(Plugin, ABC):
    """Decides per layer whether predicted attention is close enough to the exact one.

    ``space``: where the runner measures the two norms: ``heads``, what the attention kernel returns, all heads of a
    token together (ALSpec, §3.2), or ``residual``, after the output projection.
    """

    kind = "attention_verifier"
    guarantee: ClassVar[Guarantee] = "relaxed"
    space: Space = "heads"

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, layers: int) -> None:
        """Raise UserError if the options name a layer that a target of this many layers does not have."""

    def speculates(self, layer: int) -> bool:
        """False for a layer that is never predicted, and left out of the hit rate."""
        return True

    @abstractmethod
    def verify(self, layer: int, difference_sq_BN: torch.Tensor, norm_sq_BN: torch.Tensor) -> AttentionVerdict:
        """``difference_sq_BN`` is ‖Â − A‖² and ``norm_sq_BN`` ‖A‖², float32, for every live row of the requests.

        A request with several rows hits only if every one of them does. One request's rows say nothing of another's.
        """
