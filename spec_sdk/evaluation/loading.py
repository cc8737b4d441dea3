"""Benchmarks found, loaded and checked, and their requests built: all that can fail before a model answers."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.evaluation.harness import quiet, told

if TYPE_CHECKING:
    from spec_sdk.evaluation.language_model import EngineModel

RANDOM_SEED, OTHER_SEED = 0, 1234
"""Those of the harness: what a benchmark draws while it is loaded, and its few-shot examples, are as anywhere else."""


@dataclass(frozen=True)
class Benchmarks:
    """What is asked. ``loaded``: the harness's tasks and groups, by name. ``limit``: questions of each task."""

    names: tuple[str, ...]
    loaded: Mapping[str, Any]
    limit: int | None
    chat: bool

    @property
    def tasks(self) -> Mapping[str, Any]:
        """Those that have questions: the named ones, and those of groups."""
        tasks: Mapping[str, Any] = self.loaded["tasks"]
        return tasks


def load(
    names: Sequence[str], directory: str | None, limit: int | None = None, shots: int | None = None, chat: bool = False
) -> Benchmarks:
    """The harness's tasks of these names, those in the YAML of ``directory`` included, with their data.

    Raises UserError for a name that is not known, and for a task that cannot be loaded or is not offered.
    """
    import numpy as np

    manager = known_tasks(names, directory)
    random.seed(RANDOM_SEED)
    np.random.seed(OTHER_SEED)
    with quiet():
        loaded = _loaded(manager, list(names))
        for name, task in loaded["tasks"].items():
            _check(name, task)
            _give_shots(name, task, shots)
    return Benchmarks(tuple(names), loaded, limit, chat)


def known_tasks(names: Sequence[str], directory: str | None) -> Any:
    """The harness's manager of tasks, those of ``directory`` included. Raises UserError for a name it does not know."""
    from lm_eval.tasks import TaskManager

    if directory is not None and not Path(directory).is_dir():
        raise UserError(f"task.include_path: {directory} is no directory")
    with quiet(), told(f"task.include_path: {directory}"):
        manager = TaskManager(include_path=directory, include_defaults=False) if directory is not None else None
        if manager is None or not set(names) <= set(manager.all_tasks):
            # its own are thousands of files, which are not read for nothing
            manager = TaskManager(include_path=directory)
    for name in names:
        if name not in manager.all_tasks:
            own = next(Path(directory).rglob(f"{name}.yaml"), None) if directory is not None else None
            if own is not None:
                raise UserError(f"task.tasks: {own} is no YAML of a task '{name}'")
            near = difflib.get_close_matches(name, manager.all_tasks, n=1, cutoff=0.5)
            hint = f", did you mean '{near[0]}'?" if near else "; python -m spec_sdk.evaluation ls tasks lists them"
            raise UserError(f"task.tasks: unknown task '{name}'{hint}")
    return manager


def build_requests(benchmarks: Benchmarks, model: EngineModel) -> None:
    """Write all questions. Raises UserError for a task that cannot write one, and for one that cannot be answered."""
    for name, task in benchmarks.tasks.items():
        with quiet(), told(f"task.tasks: {name}"):
            task.build_all_requests(
                limit=benchmarks.limit,
                rank=model.rank,
                world_size=model.world_size,
                apply_chat_template=benchmarks.chat,
                fewshot_as_multiturn=benchmarks.chat,
                chat_template=model.apply_chat_template if benchmarks.chat else None,
                tokenizer_name=model.tokenizer_name if benchmarks.chat else "",
            )
        for request in task.instances:
            try:
                model.check(request)
            except UserError as error:
                raise UserError(f"task.tasks: {name}, document {request.doc_id}: {error}") from error
        _keep_requests(task)


def _loaded(manager: Any, names: list[str]) -> Mapping[str, Any]:
    """Tasks and groups by name. Raises UserError that names the first that cannot be loaded."""
    try:
        loaded: Mapping[str, Any] = manager.load(names)
        return loaded
    except Exception:
        for name in names:
            with told(f"task.tasks: {name}"):
                manager.load([name])
        # each alone can be loaded: they do not go together
        with told(f"task.tasks: {', '.join(names)}"):
            raise


def _check(name: str, task: Any) -> None:
    """Raise UserError for a task that is not offered, or that has what the harness stumbles over after the answers."""
    from lm_eval.api.registry import aggregation_registry, metric_registry

    where = f"task.tasks: {name}"
    if getattr(task, "UNSAFE_CODE", False):
        raise UserError(f"{where} runs code that the model writes (unsafe_code), which is not offered here")
    if getattr(task, "MULTIMODAL", False):
        raise UserError(f"{where} shows images or plays sounds; benchmarks of text are offered here")
    by_own_code = task.get_config("process_results") is not None
    for metric, compute in getattr(task, "_metric_fn_list", {}).items():
        if compute is None and not by_own_code:
            known = did_you_mean(metric, metric_registry.keys())
            raise UserError(f"{where}: neither the harness nor the evaluate library has the metric '{metric}'{known}")
    for metric, aggregate in getattr(task, "_aggregation_list", {}).items():
        if aggregate is None:
            known = did_you_mean("", aggregation_registry.keys())
            raise UserError(f"{where}: the aggregation of its metric '{metric}' is not known{known}")


def _give_shots(name: str, task: Any, shots: int | None) -> None:
    """How many examples stand before a question: a task that forbids them (0 in its YAML) keeps to that."""
    own = task.get_config("num_fewshot")
    if own is None or (shots is not None and own != 0):
        task.set_config(key="num_fewshot", value=shots or 0)
    task.set_fewshot_seed(seed=OTHER_SEED)
    pool = getattr(getattr(task, "sampler", None), "df", None)
    asked = task.get_config("num_fewshot")
    if pool is None or not asked:
        return
    # a question is no example of its own
    there = len(pool) - (task.fewshot_cfg.split == task.get_config("test_split"))
    if asked > there:
        raise UserError(f"task.num_fewshot: {asked} examples are to stand before a question, and {name} has {there}")


def _keep_requests(task: Any) -> None:
    """Have the harness ask the requests that were checked: of every pipeline the same, without an answer yet."""

    def forget_answers(**_: Any) -> None:
        for request in task.instances:
            request.resps, request.filtered_resps = [], {}

    task.build_all_requests = forget_answers
