"""The figures of a benchmark, computed from its records and from nothing else."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spec_sdk.bench.intervals import Interval, interval_of
from spec_sdk.bench.reading import BenchRun
from spec_sdk.bench.records import VANILLA, AnswerRecord, Setting
from spec_sdk.bench.spreads import Spread, spread_of
from spec_sdk.bench.totals import (
    acceptance_rate,
    decode_tokens_per_second,
    mean_accepted_tokens,
    summed_depths,
    tokens_per_second,
)
from spec_sdk.metrics import STAGES, ratio

ALL = "all"
"""In the place of a task: all of them together."""
Asked = tuple[int, str]
"""A prompt in a round."""


@dataclass(frozen=True)
class Figures:
    """One candidate under one setting, over the prompts of one task or of all. None: nothing to compute it from.

    ``prompts``: conversations that were answered to their end, in any round. ``speedup``: tokens per second over plain
    decoding's of the same prompt in the same round, prefill included, the median over rounds; its spread is over
    prompts (of a batch size above 1, over batches, of each batch's throughput). ``speedup_interval``: of its median,
    resampling these. ``decode_speedup``: the same without prefill. ``tokens_per_second``: likewise.
    ``mean_accepted_tokens`` and ``acceptance_rate`` are of all cycles together; ``acceptance_by_depth[d - 1]``: how
    often drafted tokens were accepted at least d deep, where drafts were as deep. ``stage_s_per_cycle``: seconds of
    draft, verify and recover. ``seconds_per_token``: after the first ones. ``first_token_s``, ``prefill_s``: of an
    answer. ``resident_bytes``: the most of any answer.
    """

    candidate: str
    setting: Setting
    task: str
    prompts: int
    answers: int
    new_tokens: int
    speedup: Spread | None
    speedup_interval: Interval | None
    decode_speedup: Spread | None
    tokens_per_second: Spread | None
    mean_accepted_tokens: float | None
    acceptance_rate: float | None
    acceptance_by_depth: Sequence[float]
    nodes_per_cycle: float | None
    stage_s_per_cycle: Mapping[str, float] | None
    prefill_s: Spread | None
    first_token_s: Spread | None
    seconds_per_token: Spread | None
    resident_bytes: int | None


def tasks_of(run: BenchRun) -> list[str]:
    """The tasks of a run's answers, in the order of the prompts."""
    return list(dict.fromkeys(answer.task for answer in run.answers))


def figures_of(run: BenchRun, candidate: str, setting: Setting, task: str = ALL) -> Figures | None:
    """None if it answered nothing of it. At a batch size above 1 all tasks are together: batches are mixed."""
    ours = _answers(run, candidate, setting, task)
    if not ours:
        return None
    speedup, speed = _speeds(run, candidate, setting, task)
    cycles = sum(answer.steps or 0 for answer in ours)
    told = [answer for answer in ours if answer.steps is not None]
    return Figures(
        candidate=candidate,
        setting=setting,
        task=task,
        prompts=len({answer.prompt for answer in ours}),
        answers=len(ours),
        new_tokens=sum(answer.new_tokens for answer in ours),
        speedup=spread_of(speedup),
        speedup_interval=interval_of(speedup),
        decode_speedup=None if setting.batch_size > 1 else spread_of(_decode_ratios(run, candidate, setting, task)),
        tokens_per_second=spread_of(speed),
        mean_accepted_tokens=mean_accepted_tokens(ours),
        acceptance_rate=acceptance_rate(ours),
        acceptance_by_depth=[accepted / drafted for drafted, accepted in summed_depths(ours) if drafted],
        nodes_per_cycle=ratio(
            sum(answer.nodes or 0 for answer in told),
            sum(answer.steps or 0 for answer in told if answer.nodes is not None),
        ),
        stage_s_per_cycle=_stages(told, cycles),
        prefill_s=spread_of(answer.prefill_s for answer in ours),
        first_token_s=spread_of(answer.first_token_s for answer in ours),
        seconds_per_token=spread_of(map(seconds_per_token, ours)),
        resident_bytes=max((a.resident_bytes for a in ours if a.resident_bytes is not None), default=None),
    )


def all_figures(run: BenchRun) -> list[Figures]:
    """Of every candidate under every setting, all tasks together first, then each that there is."""
    found = [
        figures_of(run, candidate, setting, task)
        for setting in run.settings
        for candidate in run.names
        for task in (ALL, *(tasks_of(run) if setting.batch_size == 1 else ()))
    ]
    return [figures for figures in found if figures is not None]


def seconds_per_token(answer: AnswerRecord) -> float | None:
    """Of the tokens after the first ones; None if there are none, or the candidate did not say when those came."""
    if answer.first_token_s is None or answer.first_tokens is None or answer.new_tokens <= answer.first_tokens:
        return None
    return (answer.seconds - answer.first_token_s) / (answer.new_tokens - answer.first_tokens)


def conversations(answers: Iterable[AnswerRecord]) -> dict[Asked, list[AnswerRecord]]:
    """A conversation's answers together, by round and prompt."""
    by: dict[Asked, list[AnswerRecord]] = defaultdict(list)
    for answer in answers:
        by[answer.round, answer.prompt].append(answer)
    return dict(by)


def paired_ratios(ours: Mapping[Asked, float | None], theirs: Mapping[Asked, float | None]) -> dict[str, float]:
    """Prompt → the median over rounds of ours over theirs in the same round, where there are both and neither is 0."""
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for (number, prompt), value in ours.items():
        other = theirs.get((number, prompt))
        if value and other:
            by_prompt[prompt].append(value / other)
    return {prompt: statistics.median(values) for prompt, values in by_prompt.items()}


def _answers(run: BenchRun, candidate: str, setting: Setting, task: str = ALL) -> list[AnswerRecord]:
    """Those of conversations that were not broken off."""
    under = (candidate, setting.temperature, setting.batch_size)
    failed = {(f.round, f.prompt) for f in run.failures if (f.candidate, f.temperature, f.batch_size) == under}
    return [
        answer
        for answer in run.answers
        if (answer.candidate, answer.setting) == (candidate, setting)
        and task in (ALL, answer.task)
        and (answer.round, answer.prompt) not in failed
    ]


def _speeds(run: BenchRun, candidate: str, setting: Setting, task: str) -> tuple[list[float], list[float | None]]:
    """Ratios to plain decoding, and tokens per second: of every prompt, or of every batch."""
    ours, theirs = (_speed_by_place(run, name, setting, task) for name in (candidate, VANILLA))
    return list(paired_ratios(ours, theirs).values()), _over_rounds(ours)


def _speed_by_place(run: BenchRun, candidate: str, setting: Setting, task: str) -> dict[Asked, float | None]:
    if setting.batch_size == 1:
        asked = conversations(_answers(run, candidate, setting, task))
        return {place: tokens_per_second(answers) for place, answers in asked.items()}
    batches = [b for b in run.batches if (b.candidate, b.setting) == (candidate, setting)]
    return {(batch.round, str(batch.first)): tokens_per_second([batch]) for batch in batches}


def _decode_ratios(run: BenchRun, candidate: str, setting: Setting, task: str) -> list[float]:
    ours, theirs = (
        {
            place: decode_tokens_per_second(answers)
            for place, answers in conversations(_answers(run, name, setting, task)).items()
        }
        for name in (candidate, VANILLA)
    )
    return list(paired_ratios(ours, theirs).values())


def _over_rounds(values: Mapping[Asked, float | None]) -> list[float | None]:
    """The median over rounds, for every prompt."""
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for (_, prompt), value in values.items():
        if value is not None:
            by_prompt[prompt].append(value)
    return [statistics.median(found) for found in by_prompt.values()]


def _stages(answers: Sequence[AnswerRecord], cycles: int) -> dict[str, float] | None:
    staged = [answer.stage_s for answer in answers if answer.stage_s is not None]
    if not staged or not cycles:
        return None
    return {stage: sum(stages[stage] for stages in staged) / cycles for stage in STAGES}


@dataclass(frozen=True)
class Losslessness:
    """Greedy answers of a candidate beside plain decoding's, under all batch sizes.

    ``ties``: differ from where two tokens are as near as rounding allows. ``faults``: differ otherwise.
    ``mean_common_tokens``: tokens up to the first difference, all of an answer that is equal; ``mean_tokens``: of the
    answers.
    """

    candidate: str
    compared: int
    equal: int
    ties: int
    faults: int
    mean_common_tokens: float | None
    mean_tokens: float | None


def losslessness_of(run: BenchRun, candidate: str) -> Losslessness:
    """What the checks of a candidate's greedy answers found."""
    checks = [check for check in run.checks if check.candidate == candidate]
    lengths = {
        (a.batch_size, a.round, a.prompt, a.turn): a.new_tokens
        for a in run.answers
        if a.candidate == candidate and a.temperature == 0
    }
    places = [lengths.get((c.batch_size, c.round, c.prompt, c.turn), 0) for c in checks]
    common = [
        length if check.first_difference is None else check.first_difference
        for check, length in zip(checks, places, strict=True)
    ]
    equal, ties = sum(check.equal for check in checks), sum(check.tie is True for check in checks)
    return Losslessness(
        candidate,
        len(checks),
        equal,
        ties,
        len(checks) - equal - ties,
        ratio(sum(common), len(checks)),
        ratio(sum(places), len(checks)),
    )


def guarantee_of(run: BenchRun, candidate: str) -> str | None:
    """What a candidate says of its greedy answers; None if it says nothing, or did not start."""
    return run.candidates[candidate].guarantee if candidate in run.candidates else None


def is_lossless(run: BenchRun, candidate: str) -> bool:
    """Whether a candidate says that its greedy answers are the target's own."""
    return guarantee_of(run, candidate) in ("exact", "distribution")


def faults(run: BenchRun) -> list[str]:
    """The pipelines that say they are lossless, and whose greedy answers differ by more than rounding."""
    return [
        name
        for name in run.names
        if run.kind_of(name) == "pipeline" and is_lossless(run, name) and losslessness_of(run, name).faults
    ]
