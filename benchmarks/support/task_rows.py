"""EasySpec's columns (Wu et al., 2025, Tables 2 to 4) for every task, from the records of ``task=bench``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.bench.figures import ALL, conversations, tasks_of
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import VANILLA, AnswerRecord
from spec_sdk.bench.totals import acceptance_rate, decode_tokens_per_second, mean_accepted_tokens


@dataclass(frozen=True)
class TaskRow:
    """One candidate on the prompts of one task, or of all (``all``), at one temperature.

    ``draft_s``, ``verify_s``, ``total_s``: seconds per 100 tokens of drafting (d), of verifying with recovery (v), and
    of both; prefill is in none. ``alpha``: accepted by drafted depth, None if nothing was drafted.
    ``tokens_per_second``: the mean over prompts (a conversation's turns together), and its ``variance`` over them, as
    in Table 4. ``speedup``: plain decoding's ``total_s`` over this one's.
    """

    candidate: str
    temperature: float
    task: str
    prompts: int
    draft_s: float
    verify_s: float
    total_s: float
    speedup: float
    alpha: float | None
    mean_accepted_tokens: float | None
    tokens_per_second: float
    variance: float


def task_rows(run: BenchRun) -> list[TaskRow]:
    """Of every temperature, task and candidate, in the order of the run; all tasks together come last.

    Only prompts that every candidate answered at that temperature count, so that all rows of a task are of the same
    ones. Raises ValueError for a run at another batch size than 1, whose stages are those of a batch.
    """
    if any(setting.batch_size != 1 for setting in run.settings):
        raise ValueError("stage times per task need a batch size of 1")
    rows = []
    for setting in run.settings:
        answers = _answered_by_all([answer for answer in run.answers if answer.setting == setting], run.names)
        for task in (*tasks_of(run), ALL):
            of_task = [answer for answer in answers if task in (ALL, answer.task)]
            plain = _seconds([answer for answer in of_task if answer.candidate == VANILLA])
            for name in run.names:
                ours = [answer for answer in of_task if answer.candidate == name]
                if ours and plain:
                    rows.append(_row(name, setting.temperature, task, ours, sum(plain)))
    return rows


def _answered_by_all(answers: Sequence[AnswerRecord], names: Sequence[str]) -> list[AnswerRecord]:
    by: dict[object, set[str]] = {}
    for answer in answers:
        by.setdefault(answer.question, set()).add(answer.candidate)
    given = {name for found in by.values() for name in found}
    return [answer for answer in answers if by[answer.question] >= given.intersection(names)]


def _seconds(answers: Sequence[AnswerRecord]) -> tuple[float, float] | None:
    """d and v per 100 tokens; None without a token."""
    tokens = sum(answer.new_tokens for answer in answers)
    if not tokens:
        return None
    stages = [answer.stage_s or {} for answer in answers]
    draft = sum(stage.get("draft", 0.0) for stage in stages)
    verify = sum(stage.get("verify", 0.0) + stage.get("recover", 0.0) for stage in stages)
    return 100 * draft / tokens, 100 * verify / tokens


def _row(name: str, temperature: float, task: str, answers: Sequence[AnswerRecord], plain_s: float) -> TaskRow:
    seconds = _seconds(answers)
    assert seconds is not None
    speeds = [decode_tokens_per_second(asked) or 0.0 for asked in conversations(answers).values()]
    return TaskRow(
        candidate=name,
        temperature=temperature,
        task=task,
        prompts=len({answer.prompt for answer in answers}),
        draft_s=seconds[0],
        verify_s=seconds[1],
        total_s=sum(seconds),
        speedup=plain_s / sum(seconds),
        alpha=acceptance_rate(answers),
        mean_accepted_tokens=mean_accepted_tokens(answers),
        tokens_per_second=statistics.fmean(speeds),
        variance=statistics.pvariance(speeds),
    )
