"""Greedy answers of all candidates held against plain decoding's, as they come."""

from __future__ import annotations

from collections.abc import Sequence

from spec_sdk.bench.checking import difference
from spec_sdk.bench.conversations import Conversation
from spec_sdk.bench.interleaved import Plan
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import VANILLA, CheckRecord, Record, Setting
from spec_sdk.model.executor import Executor

Place = tuple[str, int, int, str, int]
"""Candidate, batch size, round, prompt and turn."""


class GreedyChecks:
    """Compares answers at temperature 0 with plain decoding's of round 0 at the first batch size.

    A later turn is compared where the answers to the earlier ones are the same: otherwise it was asked something else.
    ``executor``: the target's, which scores again where they differ. ``ties``: whether rounding excuses a difference.
    """

    def __init__(self, plan: Plan, executor: Executor, found: BenchRun | None = None, *, ties: bool = True) -> None:
        self._plan = plan
        self._ties = ties
        self._executor = executor
        self._tokens: dict[Place, list[int]] = {}
        self._checked: set[Place] = set()
        if found is not None:
            for answer in found.answers:
                self.take(answer.as_record())
            for check in found.checks:
                self.take(check.as_record())

    def take(self, record: Record) -> None:
        """Remember a greedy answer, or that there is a check of one."""
        kind = record["record"]
        if kind == "check" or (kind == "answer" and record["temperature"] == 0):
            place = tuple(record[key] for key in ("candidate", "batch_size", "round", "prompt", "turn"))
            if kind == "check":
                self._checked.add(place)
            else:
                self._tokens[place] = list(record["tokens"])

    def checks(self, setting: Setting, round: int, conversation: Conversation) -> list[Record]:
        """Of all answers to a conversation that were not checked yet."""
        found: list[Record] = []
        candidates = dict.fromkeys(place[0] for place in self._tokens)
        for candidate in candidates:
            for turn in range(conversation.length):
                place = (candidate, setting.batch_size, round, conversation.id, turn)
                if place in self._checked or place not in self._tokens or place == self._reference(conversation, turn):
                    continue
                if self._asked_the_same(place, conversation, turn):
                    found.append(self._check(place, conversation, turn))
        return found

    def _reference(self, conversation: Conversation, turn: int) -> Place:
        return (VANILLA, self._plan.batch_sizes[0], 0, conversation.id, turn)

    def _asked_the_same(self, place: Place, conversation: Conversation, turn: int) -> bool:
        if self._reference(conversation, turn) not in self._tokens:
            return False
        earlier = range(turn)
        return all(self._tokens.get((*place[:4], t)) == self._tokens[self._reference(conversation, t)] for t in earlier)

    def _check(self, place: Place, conversation: Conversation, turn: int) -> Record:
        candidate, batch_size, number, prompt, _ = place
        tokens, vanilla = self._tokens[place], self._tokens[self._reference(conversation, turn)]
        apart = None
        if tokens != vanilla:
            asked = conversation.tokens(self._plan.tokenizer, self._plan.chat, self._said(conversation, turn))
            penalty = self._plan.sampling.repetition_penalty
            apart = difference(self._executor, asked, tokens, vanilla, penalty)
        check = CheckRecord(
            candidate=candidate,
            prompt=prompt,
            turn=turn,
            batch_size=batch_size,
            round=number,
            equal=apart is None,
            first_difference=None if apart is None else apart.at,
            tie=None if apart is None else apart.tie and self._ties,
            gap=None if apart is None else apart.gap,
            allowed=None if apart is None else apart.allowed,
        )
        return check.as_record()

    def _said(self, conversation: Conversation, turns: int) -> Sequence[str]:
        answers = [self._tokens[self._reference(conversation, turn)] for turn in range(turns)]
        return [self._plan.tokenizer.decode(tokens) for tokens in answers]
