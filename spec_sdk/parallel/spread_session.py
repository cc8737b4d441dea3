"""Sessions that several processes share: the leader's is used like any other, and those of the other ranks follow it.

The leader announces every call before it makes it, and the other ranks make the same call on a session of the same
number, whose passes meet the leader's in their collective operations. Only calls travel, as JSON.

Legend: N tokens, M model dim, V vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.encoder_input import EncoderInput
from spec_sdk.model.executor import Executor
from spec_sdk.model.session import EpilogueOf, Scores, Session
from spec_sdk.ops import DraftLogits
from spec_sdk.parallel.follower_calls import Call, FollowerCalls
from spec_sdk.ranks import Ranks
from spec_sdk.tree import TokenTree, TreeBuilder

GATHER = "calls"
"""The leader's message that asks for what the others did."""
IDLE = "idle"
"""Its message that there is nothing to do yet."""


class SpreadSession(Session):
    """One rank's part of a session that several of all ``ranks`` have.

    ``sessions``: those of the run so far, in the order in which every rank makes them; this one is the next.
    ``failure``: what a call failed with on the leader, in the middle of which the others may wait for it.
    """

    failure: Exception | None = None

    def __init__(
        self,
        executor: Executor,
        runner: BlockRunner | None,
        ranks: Ranks,
        sessions: Sequence[SpreadSession | None],
    ) -> None:
        # the leader alone samples, so an output head that is whole on every rank is for it alone
        super().__init__(executor, runner, looks_at_logits=ranks.is_leader or executor.head_is_collective)
        self._ranks = ranks
        self._sessions = sessions
        self.number = len(sessions)
        """Its place among the sessions of the run."""

    def open(
        self, slot: int, tokens: Sequence[int], keep: bool = True, encoder_input: EncoderInput | None = None
    ) -> int:
        # features are not announced: no model with an encoder is spread
        assert encoder_input is None
        with self._announced("open", slot, list(tokens), keep):
            return super().open(slot, tokens, keep)

    def reserve(self, slots: int, tokens: int) -> None:
        self._announce("reserve", slots, tokens)
        super().reserve(slots, tokens)

    def truncate(self, slot: int, length: int) -> int:
        with self._announced("truncate", slot, length):
            return super().truncate(slot, length)

    def prefill(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Mapping[int, torch.Tensor]:
        with self._announced("prefill", slot, list(tokens), list(taps)):
            return super().prefill(slot, tokens, taps)

    def prefill_scored(self, slot: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Scores:
        with self._announced("prefill_scored", slot, list(tokens), list(taps)):
            return super().prefill_scored(slot, tokens, taps)

    def feed(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[DraftLogits]:
        with self._announced("feed", list(slots), [list(new) for new in tokens]):
            return super().feed(slots, tokens)

    @property
    def grows_paths(self) -> bool:
        # the other ranks are told of passes
        return False

    @property
    def one_launch(self) -> bool:
        # the other ranks are told of trees and levels, and of nothing that a launch makes besides
        return False

    def score(
        self,
        slots: Sequence[int],
        trees: Sequence[TokenTree],
        taps: Sequence[int] = (),
        epilogue: EpilogueOf | None = None,
    ) -> list[Scores]:
        assert epilogue is None
        with self._announced("score", list(slots), [[tree.token_N, tree.parent_N] for tree in trees], list(taps)):
            return super().score(slots, trees, taps)

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        with self._announced("grow", list(slots), [[tree.token, tree.parent] for tree in trees], list(new_nodes)):
            return super().grow(slots, trees, new_nodes)

    def draft(
        self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int], runner: BlockRunner
    ) -> list[DraftLogits]:
        # a runner is an object, which does not travel: its like on another rank is that of the session it was made for
        owner = next((each.number for each in self._sessions if each is not None and each.runner is runner), None)
        if owner is None:
            raise UserError(
                f"runner '{runner.name}': the other processes do not have it; set every_rank on the drafter that "
                "drafts with it, and make models.session(model, runner, spread=True)"
            )
        with self._announced(
            "draft", list(slots), [[tree.token, tree.parent] for tree in trees], list(new_nodes), owner
        ):
            return super().draft(slots, trees, new_nodes, runner)

    def commit(self, slots: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        with self._announced("commit", list(slots), [list(path) for path in paths]):
            super().commit(slots, paths)

    def follow(self, call: str, arguments: Sequence[Any]) -> None:
        """Make a call that the leader announced."""
        if call == "reserve":
            # the leader refuses a request for which it has no memory; should it have some, a pass says what is missing
            with contextlib.suppress(UserError):
                self.reserve(*arguments)
            return
        if call == "score":
            slots, trees, taps = arguments
            arguments = [slots, [grown(*tree).build().tree for tree in trees], taps]
        elif call == "grow":
            slots, trees, new_nodes = arguments
            arguments = [slots, [grown(*tree) for tree in trees], new_nodes]
        elif call == "draft":
            slots, trees, new_nodes, owner = arguments
            made_for = self._sessions[owner]
            assert made_for is not None
            arguments = [slots, [grown(*tree) for tree in trees], new_nodes, made_for.runner]
        getattr(self, call)(*arguments)

    def _announce(self, call: str, *arguments: Any) -> None:
        if self._ranks.is_leader:
            if (failed := failure_of(self._sessions)) is not None:
                # who waits in the middle of a call would take the next for what it waits for
                raise failed
            self._ranks.decide(lambda: [self.number, call, arguments])

    @contextlib.contextmanager
    def _announced(self, call: str, *arguments: Any) -> Iterator[None]:
        """Around a call in which the ranks may meet."""
        self._announce(call, *arguments)
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


def failure_of(sessions: Sequence[SpreadSession | None]) -> Exception | None:
    """What a call of one of them failed with on the leader: no other can be made."""
    return next((each.failure for each in sessions if each is not None and each.failure is not None), None)


def grown(token: Sequence[int], parent: Sequence[int]) -> TreeBuilder:
    """The tree of these nodes in their order, without what only a verifier needs to know of it."""
    tree = TreeBuilder(token[0])
    for node in range(1, len(token)):
        tree.add(parent[node], token[node], "chosen")
    return tree


def follow(ranks: Ranks, sessions: Sequence[SpreadSession | None]) -> None:
    """Make every call that the leader announces, until it is done with the run; those of a session that is None are
    other ranks'.
    """
    calls = FollowerCalls()
    while (message := ranks.decide(lambda: None)) is not None:
        if message == IDLE:
            continue
        if message == GATHER:
            calls.gather(ranks)
            continue
        number, call, arguments = message
        if (session := sessions[number]) is not None:
            calls.timed(call, functools.partial(session.follow, call, arguments))


def gather_calls(ranks: Ranks) -> dict[int, list[Call]]:
    """For the leader: what every other rank did since it was asked last. Nothing with one process."""
    if ranks.size == 1:
        return {}
    ranks.decide(lambda: GATHER)
    return FollowerCalls().gather(ranks)
