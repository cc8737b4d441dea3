"""The harness called for some benchmarks: its tasks checked, its answers as plain data."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.errors import UserError, message_of

if TYPE_CHECKING:
    from spec_sdk.evaluation.language_model import EngineModel

PLAIN = "none"
"""What the harness calls the filter of answers that are taken as they are."""


@dataclass(frozen=True)
class Benchmarks:
    """Which tasks, how many of their questions, and how they are asked. ``manager``: the harness's, of all tasks."""

    tasks: tuple[str, ...]
    limit: int | None
    shots: int | None
    chat: bool
    manager: Any


@dataclass(frozen=True)
class Scores:
    """``of``: task → metric → value; a metric of filtered answers is called ``metric.filter``. ``error_of``: the same,
    standard errors. ``questions``: of each task. ``samples``: what was asked and answered, a mapping each.
    """

    of: Mapping[str, Mapping[str, float]]
    error_of: Mapping[str, Mapping[str, float]]
    questions: Mapping[str, int]
    samples: Sequence[Mapping[str, Any]]


def require() -> None:
    """Raise UserError where the harness is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("task=eval: lm-eval is not installed: pip install 'spec-sdk[eval]'")


def known_tasks(names: Sequence[str], directory: str | None) -> Any:
    """The harness's manager of tasks, those of ``directory`` included. Raises UserError for a name it does not know."""
    from lm_eval.tasks import TaskManager

    if directory is not None and not Path(directory).is_dir():
        raise UserError(f"task.include_path: {directory} is no directory")
    with _quiet():
        manager = TaskManager(include_path=directory, include_defaults=False) if directory is not None else None
        if manager is None or not set(names) <= set(manager.all_tasks):
            # its own are thousands of files, which are not read for nothing
            manager = TaskManager(include_path=directory)
    for name in names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=1, cutoff=0.5)
            hint = f", did you mean '{near[0]}'?" if near else "; python -m spec_sdk.evaluation ls tasks lists them"
            raise UserError(f"task.tasks: unknown task '{name}'{hint}")
    return manager


def evaluated(model: EngineModel, benchmarks: Benchmarks) -> Scores:
    """What the model scores. Raises UserError where a task's data cannot be had."""
    from lm_eval import evaluator

    # it would ask git for the commit of wherever the run was started, and git would tell on stderr that there is none
    evaluator.get_git_commit_hash = lambda: None
    try:
        with _quiet():
            found = evaluator.simple_evaluate(
                model=model,
                tasks=list(benchmarks.tasks),
                num_fewshot=benchmarks.shots,
                limit=benchmarks.limit,
                apply_chat_template=benchmarks.chat,
                fewshot_as_multiturn=benchmarks.chat,
                task_manager=benchmarks.manager,
            )
    except (ConnectionError, FileNotFoundError) as error:
        names = ", ".join(benchmarks.tasks)
        raise UserError(f"task.tasks: the data of {names} cannot be had: {message_of(error)}") from error
    results: Mapping[str, Mapping[str, Any]] = {**found["results"], **found.get("groups", {})}
    values, errors = {}, {}
    for task, said in results.items():
        numbers = {_name(key): value for key, value in said.items() if isinstance(value, int | float) and "," in key}
        values[task] = {key: float(value) for key, value in numbers.items() if not _is_error(key)}
        errors[task] = {_without_error(key): float(value) for key, value in numbers.items() if _is_error(key)}
    counts = {task: said["effective"] for task, said in found.get("n-samples", {}).items()}
    samples = [
        {
            "task": task,
            "document": sample["doc_id"],
            "asked": sample["arguments"],
            "answers": sample["filtered_resps"],
            "right": sample["target"],
        }
        for task, each in found.get("samples", {}).items()
        for sample in each
    ]
    return Scores(values, errors, counts, samples)


def _name(key: str) -> str:
    """``exact_match,strict`` → ``exact_match.strict``; without the filter that takes answers as they are."""
    metric, _, kind = key.partition(",")
    return metric if kind == PLAIN else f"{metric}.{kind}"


def _is_error(name: str) -> bool:
    return name.partition(".")[0].endswith("_stderr")


def _without_error(name: str) -> str:
    metric, dot, kind = name.partition(".")
    return f"{metric.removesuffix('_stderr')}{dot}{kind}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The harness tells of every step; what matters comes with the results."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "evaluate")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
