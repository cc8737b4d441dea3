"""The target writes prompts and answers them, many at a time; a prompt that it wrote needs no prefill of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from spec_sdk.contracts import SamplingParams
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UserError
from spec_sdk.pipeline import Pipeline
from spec_sdk.prompts import encode
from spec_sdk.training.sample_plan import SamplePlan
from spec_sdk.training.samples import Planned, Sample
from spec_sdk.training.teacher_labels import LabelRecorder

PLACE = "SPECSDKUSERTEXT"
"""Stands for the user's text while a chat template is rendered. Plain letters: no template changes them."""

MOST_LEFT_OUT = 200


@dataclass
class Job:
    """A sample that is being written: its prompt first, unless it is there already, then the answer."""

    planned: Planned
    prompt: list[int]
    answering: bool
    tokens: list[int] = field(default_factory=list)


@dataclass
class AnswerWriter:
    """Has a pipeline's target write the samples of a plan, ``slots`` at a time.

    ``top``: labels per token. ``prompt_tokens``: most tokens that the target adds to an opening; ``answer_tokens``:
    most tokens of an answer; ``longest``: of both. ``prompt_temperature``: at which prompts are written.
    ``left_out``: prompts that were too long, or that the target ended where they began.
    """

    pipeline: Pipeline
    plan: SamplePlan
    slots: int
    top: int
    prompt_tokens: int
    prompt_temperature: float
    answer_tokens: int
    longest: int
    chat: bool | None
    left_out: int = 0

    def __post_init__(self) -> None:
        self._labels = LabelRecorder(self.pipeline.verifier, self.top)
        self._engine = replace(self.pipeline, verifier=self._labels).new_engine(self.slots)
        self._jobs: dict[int, Job] = {}
        self._before, self._after = _around_user_text(self.pipeline, self.chat)
        self._in_a_row = 0
        openings = [text for texts in self.plan.openings.values() for text in texts]
        around = max((len(self._encoded(self._before + text + self._after)) for text in openings), default=0)
        needed = around + self.prompt_tokens + self.answer_tokens
        if openings and needed > self.longest:
            raise UserError(
                f"task.answer_tokens: with task.prompt_tokens and the longest opening samples have up to {needed} "
                f"tokens, and {self.longest} is the most (task.width, and the target's context)"
            )

    def samples(self, done: Collection[int]) -> Iterator[Sample]:
        """All samples of the plan that are not ``done``, each as soon as it is answered. Raises what the target does.

        Closing the iterator ends those that are under way.
        """
        last, number = self.plan.samples, 0
        try:
            while self._jobs or last is None or number < last:
                while len(self._jobs) < self.slots and (last is None or number < last):
                    if number not in done:
                        self._begin(self.plan[number])
                    number += 1
                yield from self._step()
        finally:
            for request in list(self._jobs):
                self._engine.cancel(request)
            self._jobs.clear()

    def _step(self) -> Iterator[Sample]:
        for progress in self._engine.step():
            job = self._jobs.get(progress.request)
            if job is None:
                continue
            if progress.error is not None:
                raise progress.error
            job.tokens += progress.tokens
            if progress.finish_reason is None:
                continue
            del self._jobs[progress.request]
            if job.answering:
                labels = self._labels.finish(progress.request)
                planned = job.planned
                yield Sample(
                    planned.number, planned.kind, planned.held_out, planned.temperature, job.prompt, job.tokens, *labels
                )
            else:
                self._answer(job.planned, self._written(job))

    def _begin(self, planned: Planned) -> None:
        if planned.prompt is not None:
            self._answer(planned, encode(self.pipeline.tokenizer, planned.prompt, self.chat))
            return
        prompt = self._encoded(self._before + planned.opening)
        self._add(planned, prompt, False, self.prompt_tokens, SamplingParams(temperature=self.prompt_temperature))

    def _answer(self, planned: Planned, prompt: list[int]) -> None:
        if not prompt or len(prompt) + self.answer_tokens > self.longest:
            self.left_out += 1
            self._in_a_row += 1
            if planned.prompt is None and self._in_a_row == MOST_LEFT_OUT:
                raise UserError(
                    f"task.openings: the target ended {MOST_LEFT_OUT} prompts in a row where they began, or wrote more "
                    "than there is room for; use other openings, or task.prompts"
                )
            return
        self._in_a_row = 0
        self._add(planned, prompt, True, self.answer_tokens, SamplingParams(temperature=planned.temperature))

    def _add(self, planned: Planned, prompt: list[int], answering: bool, most: int, sampling: SamplingParams) -> None:
        # another stream of random numbers for the prompt than for the answer
        stream = 2 * planned.number + answering
        sampling = replace(sampling, seed=self.plan.seed)
        request = self._engine.add(TokenRequest(prompt, most, sampling, random_stream=stream))
        self._jobs[request] = Job(planned, prompt, answering)
        if answering:
            self._labels.begin(request)

    def _written(self, job: Job) -> list[int]:
        """The prompt that the target wrote, as it would be asked; empty if there is nothing in it."""
        tokenizer = self.pipeline.tokenizer
        tokens = [token for token in job.tokens if token not in tokenizer.stop_ids]
        text = (job.planned.opening + tokenizer.decode(tokens)).rstrip()
        if text == job.planned.opening.rstrip():
            return []
        return self._encoded(self._before + text + self._after)

    def _encoded(self, text: str) -> list[int]:
        tokenizer = self.pipeline.tokenizer
        return tokenizer.encode_rendered(text) if self._after else tokenizer.encode(text)


def _around_user_text(pipeline: Pipeline, chat: bool | None) -> tuple[str, str]:
    """What a chat template puts before and behind a user's text; nothing for a model without one."""
    tokenizer = pipeline.tokenizer
    if chat is False or not tokenizer.has_chat_template:
        return "", ""
    parts = tokenizer.render([{"role": "user", "content": PLACE}]).split(PLACE)
    if len(parts) != 2:
        raise UserError("task.openings: the chat template has no single place for the user's text; give task.prompts")
    return parts[0], parts[1]
