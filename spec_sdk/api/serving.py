"""Requests of texts at the token engine: begun, stepped, delivered, left.

What :class:`spec_sdk.Engine` offers in several forms is this.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from spec_sdk.api.answer import Answer
from spec_sdk.api.answering import Answering, Mailbox
from spec_sdk.api.checking import Plan, plan_of, tokens_of
from spec_sdk.api.forked import check_threads, note_forks
from spec_sdk.api.request import Prompt, Request, RequestOptions, requests_of
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.events import EventLog
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline

Prompts = str | Request | Sequence[Any]
"""One prompt, or a list of prompts and requests."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A request that was checked: how it is answered, and what the token engine is asked for each of its answers."""

    plan: Plan
    asked: TokenRequest


class Serving:
    """The requests of a pipeline's engine. Its methods may be called from several threads.

    ``settings`` say what a request does not. ``log`` gets the events of all requests; without one the observers of
    plugin packages do.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings, log: EventLog | None) -> None:
        note_forks()
        self.lock = threading.RLock()
        self.failure: Exception | None = None
        """What a step failed with that ended all requests, the last time."""
        self._pipeline = pipeline
        self._settings = settings
        self._log = log
        self._live: dict[int, Answering] = {}
        self._left: deque[Mailbox] = deque()
        self._numbers = itertools.count()
        # of calls under way in the thread that has the lock
        self._depth = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._live or self._left)

    def planned_one(self, prompt: Prompt | Request, options: RequestOptions) -> Planned:
        """A request that is checked. Raises UserError for what is refused."""
        check_threads()
        requests, single = requests_of(prompt, options)
        if not single:
            raise UserError("prompt: it is a list of several; generate answers them together")
        return self._planned(requests[0])

    def _planned(self, request: Request, index: int = 0, prompts: int = 1) -> Planned:
        plan = plan_of(request.options, self._settings)
        tokens = tokens_of(request, plan, self._pipeline.tokenizer, self._pipeline.context, index, prompts)
        asked = TokenRequest(
            tokens,
            plan.max_new_tokens,
            plan.sampling,
            plan.stop_token_ids,
            plan.ignore_eos,
            input_features=plan.input_features,
            constraint=self._pipeline.constraints.of(plan.constraint),
            offsets=plan.offsets,
            min_tokens=plan.min_tokens,
            logprobs=plan.logprobs,
            prompt_logprobs=plan.prompt_logprobs,
            trace=plan.trace,
        )
        self._pipeline.engine.check(asked)
        return Planned(plan, asked)

    def begin_all(self, prompts: Prompts, options: RequestOptions) -> tuple[list[Mailbox | Answer], bool]:
        """Every prompt begun, or the answer that tells of its error; and whether it is a single one."""
        check_threads()
        requests, single = requests_of(prompts, options)
        self._pipeline.constraints.of(plan_of(options, self._settings).constraint)
        begun: list[Mailbox | Answer] = []
        try:
            for index, request in enumerate(requests):
                try:
                    begun.append(self.begin(self._planned(request, index, len(requests))))
                except UserError as error:
                    begun.append(Answer("", [], "error", error=error))
        except BaseException:
            self.leave(begun)
            raise
        return begun, single

    def begin(self, planned: Planned) -> Mailbox:
        """Begin a request with the next step. Raises UserError if there is no memory for it."""
        with self._at_work():
            plan, mailbox = planned.plan, Mailbox(next(self._numbers))
            try:
                for sample in range(plan.n):
                    answering = Answering(
                        mailbox,
                        sample,
                        self._pipeline.tokenizer,
                        plan.stop,
                        plan.min_tokens,
                        lambda: self._pipeline.guarantee_under(plan.sampling),
                        self._log or EventLog(self._pipeline.name, observe=_observers()),
                        plan.kept_special_tokens,
                    )
                    stream = sample if plan.seeded else None
                    asked = dataclasses.replace(planned.asked, random_stream=stream, emit=answering.emit)
                    number = self._pipeline.engine.add(asked)
                    self._live[number] = mailbox.open[number] = answering
            except BaseException:
                self.cancel(mailbox)
                raise
            return mailbox

    def step(self) -> None:
        """One step of the token engine for all requests, and what it gave into their mailboxes."""
        check_threads()
        with self._at_work():
            self._cancel_left()
            engine = self._pipeline.engine
            try:
                for progress in engine.step():
                    answering = self._live.get(progress.request)
                    # what a cycle fails with that was begun behind a stop string is nobody's
                    if answering is not None and progress.error is not None and not answering.complete:
                        answering.error = progress.error
                for number, answering in self._live.items():
                    if answering.stopped:
                        self._stop(number, answering)
            except Exception as error:
                self.failure = error
                # it ended all requests, of whom others than who steps now may wait for
                for answering in self._live.values():
                    answering.error = answering.error or error
                raise
            finally:
                if not engine.busy:
                    for answering in self._live.values():
                        answering.abandon("error")
                self._deliver()
            self._cancel_left()

    def _stop(self, number: int, answering: Answering) -> None:
        """End one whose stop string is complete; what that fails with is its own."""
        try:
            self._pipeline.engine.cancel(number, "stop")
        except Exception as error:
            answering.error = error

    def _deliver(self) -> None:
        for number, answering in list(self._live.items()):
            answering.deliver()
            if answering.ended:
                del self._live[number]

    def cancel(self, mailbox: Mailbox) -> None:
        """End a request as ``interrupted``, between steps."""
        with self._at_work():
            try:
                for number, answering in mailbox.open.items():
                    try:
                        self._pipeline.engine.cancel(number)
                    finally:
                        answering.abandon("interrupted")
            finally:
                self._deliver()

    def leave(self, begun: Iterable[Mailbox | Answer]) -> None:
        """Nobody waits for these any more. If a step is under way, they are cancelled behind it.

        It may be under way in this very thread: the garbage collector closes a forgotten stream at any place.
        """
        self._left.extend(mailbox for mailbox in begun if isinstance(mailbox, Mailbox) and mailbox.open)
        if self._left and self.lock.acquire(blocking=False):
            try:
                while self._left and not self._depth:
                    self.cancel(self._left.popleft())
            finally:
                self.lock.release()

    def _cancel_left(self) -> None:
        """End those that nobody waits for; what that fails with is nobody's who steps, and their last events say so."""
        while self._left:
            with suppress(Exception):
                self.cancel(self._left.popleft())

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """With the lock, and with what the engine holds in the middle of a change."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1


def go_on(begun: Iterable[Mailbox | Answer]) -> bool:
    """Whether any of them goes on."""
    return any(isinstance(mailbox, Mailbox) and mailbox.open for mailbox in begun)


def answers_of(begun: Iterable[Mailbox | Answer], single: bool) -> list[Answer]:
    """All answers in order, once all have ended. Raises the error of a ``single`` request."""
    answers: list[Answer] = []
    for item in begun:
        if isinstance(item, Answer):
            answers.append(item)
        else:
            answers += sorted((p.answer for p in item.parts if p.answer is not None), key=lambda a: a.sample)
    failed = next((answer.error for answer in answers if answer.error is not None), None)
    if single and failed is not None:
        raise failed
    return answers


def _observers() -> Callable[..., Any]:
    from spec_sdk.registry import Registry

    observe: Callable[..., Any] = Registry.discover().hook.spec_sdk_event
    return observe
