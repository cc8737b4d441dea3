"""The public engine: prompts in, answers out, several at once, over the pipeline that a YAML file composes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn, Unpack

from spec_sdk.api.answer import Answer, Part
from spec_sdk.api.answering import Mailbox
from spec_sdk.api.async_steps import AsyncSteps
from spec_sdk.api.forked import check_threads
from spec_sdk.api.loading import Model, check_alone, check_shared, is_shared, reference_of
from spec_sdk.api.request import Prompt, Request, RequestOptions
from spec_sdk.api.serving import Planned, Prompts, Serving, answers_of, go_on
from spec_sdk.config.composing import settings_for
from spec_sdk.config.overrides import as_text, parse, quote_texts, search_path_override
from spec_sdk.errors import UserError
from spec_sdk.events import EventLog
from spec_sdk.guarantees import Guarantee
from spec_sdk.model.in_memory import InMemoryModel
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.parallel.spread_session import failure_of
from spec_sdk.parallel.waiting_followers import waiting_followers
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.pipeline import Pipeline

MAX_NUM_SEQS = 8
"""Prompts that an engine answers at once where nothing is said; caches take memory for those that were."""
OF_RUNS = ("task", "compare", "prompt", "prompt_file", "prompt_limit")
"""Options that an engine would do nothing with."""


class Engine:
    """Answers prompts with a pipeline, up to ``max_num_seqs`` at once; more wait.

    All calls may be made from several threads, or from tasks of an event loop: their requests share the engine's steps.
    What the command line refuses is refused here by a :class:`spec_sdk.UserError` with the same message.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings, log: EventLog | None = None) -> None:
        """An engine over a pipeline that is built. :meth:`from_pipeline` builds one.

        ``settings`` say what a request does not. ``log`` gets the events of all requests and keeps them; without one
        the observers of plugin packages get them.
        """
        self.pipeline = pipeline
        self._settings = settings
        self._serving = Serving(pipeline, settings, log)
        self._overrides: list[str] = []
        self._given: dict[str, InMemoryModel] = {}
        self._added: dict[int, Mailbox] = {}
        self._async: AsyncSteps | None = None

    def __repr__(self) -> str:
        pipeline = self.pipeline
        about = [pipeline.name, pipeline.target_name, str(pipeline.dtype), pipeline.backend.name, pipeline.guarantee]
        return f"<Engine {', '.join(about)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine is neither pickled nor copied: make one in each process, by Engine.from_pipeline")

    @classmethod
    def from_pipeline(
        cls,
        pipeline: str = "suffix",
        *,
        target: Model | None = None,
        draft: Model | None = None,
        overrides: Sequence[str] = (),
        max_num_seqs: int = MAX_NUM_SEQS,
        config_dir: str | os.PathLike[str] | None = None,
    ) -> Engine:
        """Load the models of a pipeline and put it together.

        ``pipeline`` names a YAML file of conf/pipeline, of a plugin package, or of ``config_dir``/pipeline. ``target``
        and ``draft`` take the place of ``model.target`` and ``model.draft``. ``overrides`` are what stands behind
        ``python -m spec_sdk`` on the command line, such as ``drafter.width=8``. Raises UserError.
        """
        given: dict[str, InMemoryModel] = {}
        composed = [f"pipeline={pipeline}"]
        if config_dir is not None:
            if not isinstance(config_dir, str | os.PathLike):
                raise UserError(f"config_dir: {config_dir!r} is no directory")
            composed.append(search_path_override(os.fspath(config_dir), "config_dir"))
        for option, model in (("model.target", target), ("model.draft", draft)):
            if model is not None:
                composed.append(f"{option}={as_text(reference_of(model, given, option.removeprefix('model.')))}")
        return cls._composed([*composed, *quote_texts(_listed(overrides), sweep=False)], given, max_num_seqs, None)

    def with_pipeline(
        self,
        pipeline: str,
        *,
        draft: Model | None = None,
        overrides: Sequence[str] = (),
        max_num_seqs: int | None = None,
    ) -> Engine:
        """Another engine, with another pipeline and caches of its own, on the models that are loaded.

        It keeps the overrides that this one was made with, but for those of its drafter, verifier and other plugins:
        only the backend is shared. Raises UserError for overrides that ask for another target, dtype or backend.
        """
        given = dict(self._given)
        changed = [f"model.draft={as_text(reference_of(draft, given, 'draft'))}"] if draft is not None else []
        changed += quote_texts(_listed(overrides), sweep=False)
        again = {o.key_or_group for o in parse(changed)}
        kept = [str(o.input_line) for o in parse(self._overrides) if is_shared(o) and o.key_or_group not in again]
        slots = self.pipeline.slots if max_num_seqs is None else max_num_seqs
        return self._composed([f"pipeline={pipeline}", *kept, *changed], given, slots, self)

    @classmethod
    def _composed(
        cls, overrides: list[str], given: dict[str, InMemoryModel], max_num_seqs: int, beside: Engine | None
    ) -> Engine:
        from spec_sdk.pipeline import build_pipeline
        from spec_sdk.registry import Registry

        if not isinstance(max_num_seqs, int) or isinstance(max_num_seqs, bool) or max_num_seqs < 1:
            raise UserError(f"max_num_seqs: {max_num_seqs!r} must be 1 or more")
        check_alone()
        check_threads()
        for option in (str(override.key_or_group) for override in parse(overrides)):
            if option in OF_RUNS:
                raise UserError(f"overrides: {option} is of a run of the command line; an engine is given prompts")
        settings = settings_for(overrides)
        if beside is not None:
            check_shared(settings, beside._settings)
        pipeline = build_pipeline(
            settings,
            Registry.discover(),
            slots=max_num_seqs,
            given=given,
            beside=None if beside is None else beside.pipeline,
        )
        engine = cls(pipeline, settings)
        engine._overrides, engine._given = overrides, given
        return engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's: ``encode``, ``decode``, ``chat``."""
        return self.pipeline.tokenizer

    @property
    def guarantee(self) -> Guarantee:
        """What holds of answers with the pipeline's own sampling parameters."""
        return self.pipeline.guarantee

    @property
    def context(self) -> int:
        """Most tokens, prompt and answer together."""
        return self.pipeline.context

    def check(self, prompt: Prompt | Request, **options: Unpack[RequestOptions]) -> None:
        """Raise the UserError by which a prompt with these options would be refused; nothing is begun."""
        self._serving.planned_one(prompt, options)

    def waiting_followers(self, end: Callable[[Exception], None]) -> AbstractContextManager[None]:
        """While it lasts the other processes of a launched run wait for requests, however long none comes; ``end`` is
        called, in another thread, with what ended that for all of them. Nothing in one process.
        """
        serving, sessions = self._serving, self.pipeline.models.spread
        return waiting_followers(
            self.pipeline.ranks, serving.lock, lambda: serving.failure or failure_of(sessions), end
        )

    # one call, all answers

    def generate(self, prompts: Prompts, **options: Unpack[RequestOptions]) -> list[Answer]:
        """Answer one prompt or a list of them together; their answers in order, ``n`` of each beside one another.

        Of a list, a prompt that is refused or fails has an answer with ``error``, and the others are answered; the
        error of a single prompt is raised. Raises UserError for options that are not valid for any prompt.
        """
        begun, single = self._serving.begin_all(prompts, options)
        try:
            while go_on(begun):
                self._serving.step()
        finally:
            self._serving.leave(begun)
        return answers_of(begun, single)

    def answers(
        self, prompts: Sequence[Prompt | Request], **options: Unpack[RequestOptions]
    ) -> Generator[Answer, None, None]:
        """:meth:`generate` for a list, answer by answer: each when it and all before it are there. What it raises, it
        raises when the first is asked for. Ending the iteration early cancels what goes on.
        """
        # a list of a text would be its letters, and what is no list at all is refused as a prompt
        several = isinstance(prompts, Iterable) and not isinstance(prompts, Sized | Request)
        begun, single = self._serving.begin_all(list(prompts) if several else prompts, options)
        try:
            for one in begun:
                while go_on([one]):
                    self._serving.step()
                yield from answers_of([one], single)
        finally:
            self._serving.leave(begun)

    async def agenerate(self, prompts: Prompts, **options: Unpack[RequestOptions]) -> list[Answer]:
        """:meth:`generate` for an event loop. Cancelling the task cancels its requests."""
        steps = self._steps()
        async with steps.lock:
            begun, single = self._serving.begin_all(prompts, options)
        try:
            while go_on(begun):
                await steps.next()
        finally:
            self._serving.leave(begun)
        return answers_of(begun, single)

    # one prompt, part by part

    def stream(self, prompt: Prompt | Request, **options: Unpack[RequestOptions]) -> Generator[Part, None, None]:
        """Answer one prompt; yields what every step adds. Closing it early cancels the request.

        Its last part has the whole ``answer``; with ``n`` of them, one for each ``sample``. Raises UserError at once
        for what is refused, and later what the request fails with.
        """
        return self._stream(self._serving.planned_one(prompt, options))

    def _stream(self, planned: Planned) -> Generator[Part, None, None]:
        mailbox = self._serving.begin(planned)
        try:
            yield from mailbox.take()
            while mailbox.open:
                self._serving.step()
                yield from mailbox.take()
        finally:
            self._serving.leave([mailbox])

    async def astream(self, prompt: Prompt | Request, **options: Unpack[RequestOptions]) -> AsyncGenerator[Part, None]:
        """:meth:`stream` for an event loop. Cancelling the task, or closing it, cancels the request."""
        planned, steps = self._serving.planned_one(prompt, options), self._steps()
        async with steps.lock:
            mailbox = self._serving.begin(planned)
        try:
            while True:
                for part in mailbox.take():
                    yield part
                if not mailbox.open and not mailbox.parts:
                    return
                if mailbox.open:
                    await steps.next()
        finally:
            self._serving.leave([mailbox])

    # step by step

    def add(self, prompt: Prompt | Request, **options: Unpack[RequestOptions]) -> int:
        """Begin a request with the next step; return its number. Raises UserError for what is refused."""
        planned = self._serving.planned_one(prompt, options)
        with self._serving.lock:
            mailbox = self._serving.begin(planned)
            self._added[mailbox.request] = mailbox
        return mailbox.request

    def step(self) -> list[Part]:
        """Go on with all requests; what is new of those that were added by :meth:`add`.

        A request that failed has a last part whose ``answer`` has the ``error``.
        """
        with self._serving.lock:
            self._serving.step()
            parts: list[Part] = []
            for mailbox in list(self._added.values()):
                parts += mailbox.parts
                mailbox.parts.clear()
                if not mailbox.open:
                    del self._added[mailbox.request]
            return parts

    @property
    def busy(self) -> bool:
        """Whether there is anything that :meth:`step` has not returned yet."""
        return bool(self._added)

    def cancel(self, request: int) -> None:
        """End a request that was added, as ``interrupted``; the next step returns its last part. Does nothing where it
        has ended. Raises UserError for what is no request's number.
        """
        if not isinstance(request, int):
            raise UserError(f"request: {request!r} is no number that add returned")
        with self._serving.lock:
            if request in self._added:
                self._serving.cancel(self._added[request])

    def _steps(self) -> AsyncSteps:
        """What steps for the tasks of the running event loop."""
        if self._async is None or not self._async.of_running_loop():
            self._async = AsyncSteps(self._serving)
        return self._async


def _listed(overrides: Sequence[str]) -> Sequence[str]:
    """A text is a sequence too, of letters."""
    if isinstance(overrides, str):
        raise UserError(f"overrides: {overrides!r} is a text; give a list of them, [{overrides!r}]")
    if isinstance(overrides, Mapping):
        given = [f"{key}={value}" for key, value in overrides.items()]
        raise UserError(f"overrides: {overrides!r} is no list of texts; give {given!r}")
    try:
        listed = list(overrides)
    except TypeError:
        raise UserError(f"overrides: {overrides!r} is no list of texts such as ['drafter.width=4']") from None
    for item in listed:
        if not isinstance(item, str):
            raise UserError(f"overrides: {item!r} is no text such as 'drafter.width=4'")
    return listed
