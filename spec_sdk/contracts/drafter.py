"""The contract of a drafter: it grows a tree of drafted tokens.

Legend: N tree nodes, M model dim, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from spec_sdk.contracts.plugin import Plugin
from spec_sdk.contracts.request import Budget, Request

if TYPE_CHECKING:
    from spec_sdk.model.models import Models
    from spec_sdk.ranks import Ranks
    from spec_sdk.tree import TokenTree


class Drafter(Plugin, ABC):
    """Proposes tokens. One instance per request.

    ``hidden_layers``: target layers (0 = embedding output, i = output of block i) whose hidden states it wants.
    ``models`` gives access to the draft model (:meth:`Models.draft`), loaded once and shared by all requests.
    """

    kind = "drafter"
    hidden_layers: tuple[int, ...] = ()
    draft_name: str | None = None
    """The draft model's label for reports; None for a drafter without a model."""
    branches: bool = False
    """Whether its trees may branch. A verifier that takes chains only is refused beside such a drafter."""
    every_rank: bool = False
    """With several processes: whether all of them must draft, since drafting itself is spread over them or runs the
    target (``request.target``). Otherwise the leader drafts alone and the others are told the tree."""

    def __init__(self, config: Any, models: Models) -> None:
        self.config = config
        self.models = models

    def leader_alone(self, ranks: Ranks) -> AbstractContextManager[None]:
        """What its calls run under: unless it drafts on every rank, an operation of all ranks is an error."""
        return nullcontext() if self.every_rank else ranks.alone(f"drafter '{self.name}', which is not every_rank,")

    def start(self, request: Request, prompt_hidden: Mapping[int, torch.Tensor] | None = None) -> None:
        """Prepare for ``request`` (prefill). ``prompt_hidden``: layer → states [P, M] of all but the pending token.

        Called with the target's prefill. A drafter without ``hidden_layers`` may instead be started right before its
        first ``propose``, if the policy begins with plain steps: ``request.tokens`` then holds output too, and
        ``observe`` was not called for it.
        """

    @abstractmethod
    def propose(self, request: Request, budget: Budget) -> TokenTree:
        """Return a tree whose root is the pending token, with a depth of at most ``budget.depth`` (>= 1).

        It has at most ``budget.nodes`` nodes; ``depth`` is less than that, so a chain need not look at it.
        """

    def observe(
        self, request: Request, committed: Sequence[int], path_hidden: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        """``committed`` tokens were just appended to ``request.tokens``. Record only; mend the own cache in propose."""
