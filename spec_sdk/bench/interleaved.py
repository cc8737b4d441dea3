"""Candidates side by side: every prompt is answered by all of them, one after the other, in another order each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from spec_sdk.bench.candidate import Ask, Candidate, CandidateError, Measured
from spec_sdk.bench.conversations import Conversation
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import AnswerRecord, BatchRecord, FailureReason, FailureRecord, Record, Setting
from spec_sdk.bench.turns import rotated
from spec_sdk.config.option import LARGEST_INT64
from spec_sdk.errors import UserError, in_a_line
from spec_sdk.prompts import check_length
from spec_sdk.sampling_params import SamplingParams

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """What all candidates are asked.

    ``sampling``: all but the temperature, which is one of ``temperatures``; each answer gets a seed of its own, from
    the one that it has. ``context``: most tokens of a prompt with its answer. ``stop_ids``: empty where answers go on
    to ``new_tokens`` whatever comes. Of a conversation only the first turn is asked where ``batch_size`` is above 1.
    """

    conversations: Sequence[Conversation]
    tokenizer: Tokenizer
    chat: bool | None
    context: int
    new_tokens: int
    temperatures: Sequence[float] = (0.0,)
    batch_sizes: Sequence[int] = (1,)
    rounds: int = 1
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()

    @property
    def settings(self) -> list[Setting]:
        return [Setting(t, b) for b in self.batch_sizes for t in self.temperatures]

    def ask(self, tokens: Sequence[int], setting: Setting, number: int, new_tokens: int | None = None) -> Ask:
        """The request for a prompt; ``number``: of the prompt among all of all rounds."""
        sampling = self.sampling
        return Ask(
            tokens,
            new_tokens or self.new_tokens,
            setting.temperature,
            (sampling.seed + number) % LARGEST_INT64,
            self.stop_ids,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
        )


class Progress(Protocol):
    """What is told while a run goes on."""

    def begin(self, answers: int) -> None:
        """So many answers are to be made."""

    def at(self, setting: Setting, round: int, prompt: str) -> None:
        """Where the run is."""

    def answered(self, candidate: str, answers: int) -> None:
        """A candidate gave so many answers, or failed to."""


class Checker(Protocol):
    """Looks at greedy answers once all candidates have answered a prompt."""

    def take(self, record: Record) -> None:
        """A record that was written."""

    def checks(self, setting: Setting, round: int, conversation: Conversation) -> list[Record]:
        """The records of what there is to be said of it."""


class InterleavedRun:
    """Asks ``candidates``, plain decoding among them, and gives records to ``write``, those of a prompt together.

    ``found``: what an earlier run of the same plan left; nothing of that is asked again. A conversation that was broken
    off is asked anew. An interrupt, or what ``write`` raises, ends it.
    """

    def __init__(
        self,
        plan: Plan,
        candidates: Sequence[Candidate],
        write: Callable[[list[Record]], None],
        progress: Progress,
        checker: Checker | None = None,
        found: BenchRun | None = None,
    ) -> None:
        self._plan = plan
        self._candidates = list(candidates)
        self._write = write
        self._progress = progress
        self._checker = checker
        self._done = _Done(found)

    def run(self) -> None:
        """All that is not done yet."""
        rounds = [(s, r) for s in self._plan.settings for r in range(self._plan.rounds)]
        able = {s: self._able(s) for s in self._plan.settings}
        self._progress.begin(sum(self._answers_left(s, r, c) for s, r in rounds for c in able[s]))
        for setting, number in rounds:
            if any(self._answers_left(setting, number, candidate) for candidate in able[setting]):
                self._begin(setting, number, able[setting])
            self._round(setting, number, able[setting])

    def _able(self, setting: Setting) -> list[Candidate]:
        """Those that can answer under a setting; of the others it is recorded once."""
        able = []
        for candidate in self._candidates:
            why = candidate.refusal(setting.temperature, setting.batch_size)
            if why is None:
                able.append(candidate)
            elif not self._done.refused(candidate.name, setting):
                self._keep([_failure(candidate, setting, None, None, None, "refused", CandidateError(why))])
        return able

    def _groups(self, setting: Setting) -> Iterator[tuple[int, Sequence[Conversation]]]:
        """The conversations that are answered together, with the number of the first."""
        conversations = self._plan.conversations
        for first in range(0, len(conversations), setting.batch_size):
            yield first, conversations[first : first + setting.batch_size]

    def _answers_left(self, setting: Setting, number: int, candidate: Candidate) -> int:
        return sum(
            _turns(conversation, setting)
            for _, group in self._groups(setting)
            if not self._done.all(candidate.name, setting, number, group)
            for conversation in group
        )

    def _begin(self, setting: Setting, number: int, candidates: Sequence[Candidate]) -> None:
        """Have all candidates begin a round, and answer something that is not timed: what compiles does it there."""
        plan = self._plan
        shortest = min(plan.conversations, key=lambda conversation: conversation.characters)
        # backwards, so that no cache holds the beginning of a prompt that is timed
        tokens = shortest.tokens(plan.tokenizer, plan.chat, [])[::-1][: plan.context // 2]
        ask = plan.ask(tokens, setting, number, min(WARM_UP_TOKENS, plan.new_tokens, plan.context - len(tokens)))
        for candidate in candidates:
            try:
                candidate.begin(setting.batch_size)
                measured = candidate.answer_together([ask] * setting.batch_size)
                seconds = max(m.seconds for m in measured if isinstance(m, Measured))
            except Exception:  # if it is no accident, the first prompt says so
                continue
            record: Record = {"record": "warm_up", "candidate": candidate.name, **asdict(setting), "seconds": seconds}
            self._keep([record])

    def _round(self, setting: Setting, number: int, candidates: Sequence[Candidate]) -> None:
        for place, (first, group) in enumerate(self._groups(setting)):
            for candidate in rotated(candidates, place + number):
                if self._done.all(candidate.name, setting, number, group):
                    continue
                self._progress.at(setting, number, group[0].id)
                answered = self._converse if setting.batch_size == 1 else self._together
                self._keep(answered(candidate, setting, number, first, group))
                self._progress.answered(candidate.name, sum(_turns(conversation, setting) for conversation in group))
            if self._checker is not None and setting.temperature == 0:
                for conversation in group:
                    self._keep(self._checker.checks(setting, number, conversation))

    def _converse(
        self, candidate: Candidate, setting: Setting, number: int, index: int, group: Sequence[Conversation]
    ) -> list[Record]:
        """A conversation to its end, or to where it fails."""
        plan, [conversation] = self._plan, group
        records: list[Record] = []
        said: list[str] = []
        for turn in range(conversation.length):
            reason: FailureReason = "too_long"
            try:
                tokens = self._prompt(conversation, said)
                reason = "error"
                ask = plan.ask(tokens, setting, number * len(plan.conversations) + index)
                measured = candidate.answer(ask)
            except Exception as error:  # whatever a candidate fails with
                return [*records, _failure(candidate, setting, number, conversation, turn, reason, error)]
            if number or index or turn:
                # one timeline tells how a pipeline works; those of all answers would be most of the file
                measured = replace(measured, timeline=None)
            records.append(_answer(candidate, setting, number, conversation, turn, ask, measured))
            said.append(plan.tokenizer.decode(measured.tokens))
        return records

    def _together(
        self, candidate: Candidate, setting: Setting, number: int, first: int, group: Sequence[Conversation]
    ) -> list[Record]:
        """The first turns of several conversations at once."""
        plan = self._plan
        records: list[Record] = []
        asks: dict[int, Ask] = {}
        for i, conversation in enumerate(group):
            try:
                seed = number * len(plan.conversations) + first + i
                asks[i] = plan.ask(self._prompt(conversation, []), setting, seed)
            except UserError as error:
                records.append(_failure(candidate, setting, number, conversation, 0, "too_long", error))
        try:
            found = candidate.answer_together(list(asks.values())) if asks else []
        except Exception as error:  # whatever a candidate fails with
            found = [error] * len(asks)
        served: list[tuple[Conversation, Measured]] = []
        for (i, ask), measured in zip(asks.items(), found, strict=True):
            if isinstance(measured, Measured):
                # its steps are shared, and their seconds divided
                measured = replace(measured, timeline=None)
                served.append((group[i], measured))
                records.append(_answer(candidate, setting, number, group[i], 0, ask, measured))
            else:
                records.append(_failure(candidate, setting, number, group[i], 0, "error", measured))
        return [*records, *_batch(candidate, setting, number, first, served)]

    def _prompt(self, conversation: Conversation, said: Sequence[str]) -> list[int]:
        """The tokens of the next turn. Raises UserError for one that does not fit."""
        tokens = conversation.tokens(self._plan.tokenizer, self._plan.chat, said)
        check_length(len(tokens), self._plan.new_tokens, self._plan.context)
        return tokens

    def _keep(self, records: list[Record]) -> None:
        if records:
            self._write(records)
            if self._checker is not None:
                for record in records:
                    self._checker.take(record)


class _Done:
    """What was answered, or failed, before this run."""

    def __init__(self, found: BenchRun | None) -> None:
        answers, failures = (found.answers, found.failures) if found is not None else ([], [])
        self._answers = {(a.candidate, a.setting, a.round, a.prompt, a.turn) for a in answers}
        self._failures = {(f.candidate, f.temperature, f.batch_size, f.round, f.prompt) for f in failures}

    def all(self, candidate: str, setting: Setting, number: int, group: Sequence[Conversation]) -> bool:
        return all(self._one(candidate, setting, number, conversation) for conversation in group)

    def refused(self, candidate: str, setting: Setting) -> bool:
        return (candidate, setting.temperature, setting.batch_size, None, None) in self._failures

    def _one(self, candidate: str, setting: Setting, number: int, conversation: Conversation) -> bool:
        of = (candidate, setting.temperature, setting.batch_size, number, conversation.id)
        return of in self._failures or all(
            (candidate, setting, number, conversation.id, turn) in self._answers
            for turn in range(_turns(conversation, setting))
        )


def _turns(conversation: Conversation, setting: Setting) -> int:
    return conversation.length if setting.batch_size == 1 else 1


def _answer(
    candidate: Candidate,
    setting: Setting,
    number: int,
    conversation: Conversation,
    turn: int,
    ask: Ask,
    measured: Measured,
) -> Record:
    return AnswerRecord(
        candidate=candidate.name,
        temperature=setting.temperature,
        batch_size=setting.batch_size,
        round=number,
        prompt=conversation.id,
        task=conversation.task,
        turn=turn,
        seed=ask.seed,
        prompt_tokens=len(ask.tokens),
        new_tokens=len(measured.tokens),
        **vars(measured),
    ).as_record()


def _batch(
    candidate: Candidate, setting: Setting, number: int, first: int, served: Sequence[tuple[Conversation, Measured]]
) -> list[Record]:
    """The record of a batch; none if nothing of it was answered."""
    if not served:
        return []
    batch = BatchRecord(
        candidate=candidate.name,
        temperature=setting.temperature,
        batch_size=setting.batch_size,
        round=number,
        first=first,
        prompts=[conversation.id for conversation, _ in served],
        seconds=max(measured.seconds for _, measured in served),
        new_tokens=sum(len(measured.tokens) for _, measured in served),
        first_token_s=[measured.first_token_s for _, measured in served],
    )
    return [batch.as_record()]


def _failure(
    candidate: Candidate,
    setting: Setting,
    number: int | None,
    conversation: Conversation | None,
    turn: int | None,
    reason: FailureReason,
    error: BaseException,
) -> Record:
    prompt = None if conversation is None else conversation.id
    of = FailureRecord(
        candidate=candidate.name, reason=reason, error=in_a_line(error), **asdict(setting), round=number, prompt=prompt,
        turn=turn,
    )  # fmt: skip
    return of.as_record()
