"""The contract of a drafter: it grows trees of drafted tokens.

Legend: N tree nodes, P prompt tokens, M model dim.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spec_sdk.contracts.request import Budget, Request
from spec_sdk.errors import of_request
from spec_sdk.model.models import Models
from spec_sdk.model.session import Session
from spec_sdk.ops import TopTokens
from spec_sdk.ops.grown_paths import ClosedTrees
from spec_sdk.plugin import Plugin
from spec_sdk.tree import TokenTree

Hidden = Mapping[int, torch.Tensor]
"""Layer → hidden states, a row per token."""


TreesTold = Callable[[ClosedTrees], None]
"""Takes requests' trees that the host has not read."""


class Drafter(Plugin, ABC):
    """Proposes tokens. One instance serves all requests of an engine; state is kept by ``request.slot``.

    A drafter overrides :meth:`propose_one`, or :meth:`propose` if it drafts for several requests at once.

    ``taps``: target layers (0 = embedding output, i = output of block i) whose hidden states it wants; an empty tuple
    costs nothing. ``models`` gives access to the draft model (:meth:`Models.draft`), loaded once.
    """

    kind = "drafter"
    taps: tuple[int, ...] = ()
    taps_last_only: bool = False
    """Whether of all tokens that a request begins with it wants the states of the last one alone: ``prompt_hidden`` of
    :meth:`start` has one row then, or none. A prompt's other rows need not pass through all of the target's layers."""
    target_top_k: int = 0
    """How many of the target's most probable tokens it wants after each scored node (:meth:`observe_scores`). 0 costs
    nothing; else a step waits for its device once more."""
    draft_name: str | None = None
    """The draft model's label for reports; None for a drafter without a model."""
    draft_session: Session | None = None
    """The session that its draft model grows trees in, for measuring what a level costs; None where there is none, or
    more than one."""
    branches: bool = False
    """Whether its trees may branch. A verifier that takes chains only is refused beside such a drafter."""
    drafts: bool = True
    """Whether it ever proposes more than the root. If not, a step may begin before the last one has been read."""
    catches_up: bool = True
    """Whether drafting takes longer the more committed tokens there are that it has not seen: those of the prompt, or
    that were decoded plainly. Not so where it drafts in the target's own cache."""
    longest_catch_up: int | None = None
    """Of more tokens that it has not seen its model reads so many; None: all."""
    weighs_time: bool = False
    """Whether it weighs by itself what its model takes, by :attr:`Budget.tokens_per_second`, so that no policy need."""
    drafts_ahead: bool = True
    """Whether it can draft behind more tokens than the pending one that the target has made no K and V of yet: those
    that a request's constraint forced. One with ``taps`` is never asked to."""
    trees_told: TreesTold | None = None
    """Set by the engine around a :meth:`propose` whose trees it would rather have before the host: a drafter that makes
    the whole trees of all requests on the device calls it, once, with these in their order, before it reads anything,
    and the target's pass begins. What :meth:`propose` returns is what counts: another tree costs that pass."""
    every_rank: bool = False
    """With several processes: whether it must be made on all of them, since its sessions are spread over them
    (:meth:`Models.session`). Otherwise it is made and asked on the leader alone."""

    def __init__(self, config: Any, models: Models) -> None:
        self.config = config
        self.models = models

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        """Prepare for ``requests`` (prefill). ``prompt_hidden``: per request, layer → states [P, M] of all tokens but
        the pending one: no rows for a prompt of one token.

        Called after the target's prefill, or right before the first ``propose``, if the policy begins with plain steps:
        ``request.tokens``, and ``prompt_hidden``, then have output too, for which ``observe`` was not called.
        """

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        """One tree per request, whose root is the pending token, of at most ``depth`` (>= 1) and ``nodes`` nodes.

        ``depth`` is less than ``nodes``, so a chain need not look at it. By default one request after the other.
        An error ends all requests of the call; RequestError, which the default makes of what :meth:`propose_one`
        raises, the one that it names: the others get a plain step.

        Between this and ``observe`` other requests may be started, and a request may be cancelled: it is then finished
        without another ``observe``.
        """
        return [
            of_request(request.id, self.propose_one, request, budget)
            for request, budget in zip(requests, budgets, strict=True)
        ]

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        """The tree of one request; see :meth:`propose`."""
        raise NotImplementedError(f"drafter {self.name!r} has neither propose nor propose_one")

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        """``committed`` tokens were just appended to each request's tokens. Record only; mend the own cache in propose.

        ``path_hidden``: per request, layer → states [N, M] of the committed path's nodes, the root first; before them
        those of tokens that :meth:`observe_forced` told of. They are not to be written to.
        """

    def observe_forced(self, requests: Sequence[Request], forced: Sequence[Sequence[int]]) -> None:
        """``forced`` tokens were just appended to each request's tokens: its constraint left no choice, so they say
        nothing of drafts. By default they are observed like others, without states.
        """
        self.observe(requests, forced)

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        """What the target thinks most probable after every node of the trees that it scored, rejected ones included.

        Called before :meth:`observe` in every step, plain ones too, with ``target_top_k`` tokens of each node. Record
        only.
        """

    @classmethod
    def proposes(cls) -> bool:
        """Whether one of the two ways to propose was overridden."""
        return cls.propose is not Drafter.propose or cls.propose_one is not Drafter.propose_one

    def finish(self, requests: Sequence[Request]) -> None:
        """These requests have ended (done, cancelled or failed): what is kept of their slots can go."""
