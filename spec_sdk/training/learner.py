"""What the training loop needs of whatever is trained: a draft model or a head.

Legend: R predictions of a batch, W tokens that can be drafted, A labelled positions, K labels of a position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from spec_sdk.training.samples import Sample


class Batch(Protocol):
    """Samples and what the target held of their tokens. ``lengths``: labelled positions of each sample."""

    @property
    def labels(self) -> int:
        """Labelled positions."""

    @property
    def lengths(self) -> Sequence[int]: ...

    @property
    def next_A(self) -> torch.Tensor: ...

    @property
    def top_id_AK(self) -> torch.Tensor: ...

    @property
    def top_logprob_AK(self) -> torch.Tensor: ...

    @property
    def logprob_A(self) -> torch.Tensor: ...

    def to(self, device: torch.device) -> Any: ...


class Learner(nn.Module, ABC):
    """A module whose call gives states, :meth:`logits` of which predict tokens.

    ``weights``: the trained parameters by name. ``unrolls``: whether the steps of a chain differ, because each goes on
    from what the one before it returned; if not, one step says all.
    """

    weights: nn.ParameterDict
    unrolls: bool

    @abstractmethod
    def batch(self, rows: Sequence[Sequence[Sample]], width: int) -> Batch:
        """What the steps are given of these samples."""

    @abstractmethod
    def targets(self, batch: Any, steps: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every state that a call returns: the labelled position that it predicts [R], and its step [R]."""

    @abstractmethod
    def loss_weights(self, step_R: torch.Tensor) -> torch.Tensor | None:
        """The weight in the loss of predictions at these steps of a chain; None for 1."""

    @abstractmethod
    def logits(self, state: torch.Tensor) -> torch.Tensor:
        """[R, W] of the tokens that it can draft."""

    @abstractmethod
    def places(self, token: torch.Tensor) -> torch.Tensor:
        """Where these tokens stand among the W that it can draft; -1 for one that it cannot."""


def parameters_in_order(model: Learner) -> Sequence[tuple[str, nn.Parameter]]:
    """The trained parameters by name, always in one order."""
    return sorted(model.weights.items())
