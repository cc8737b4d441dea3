"""What the harness makes of a model's answers, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.evaluation.harness import quiet, told

if TYPE_CHECKING:
    from spec_sdk.evaluation.language_model import EngineModel
    from spec_sdk.evaluation.loading import Benchmarks

PLAIN = "none"
"""What the harness calls the filter of answers that are taken as they are."""
WHOLE_TEXTS = "loglikelihood_rolling"
"""The harness's type of tasks whose right answer is the text that is asked about."""


@dataclass(frozen=True)
class Scores:
    """``of``: task → metric → value; a metric of filtered answers is called ``metric.filter``. ``error_of``: the same,
    standard errors. ``questions``: of each task. ``samples``: what was asked and answered, a mapping for each question
    and filter.
    """

    of: Mapping[str, Mapping[str, float]]
    error_of: Mapping[str, Mapping[str, float]]
    questions: Mapping[str, int]
    samples: Sequence[Mapping[str, Any]]

    def without_prompts(self) -> Iterator[Mapping[str, Any]]:
        """The samples, the texts that were asked about left out."""
        for sample in self.samples:
            texts = ("asked", "right") if sample["output_type"] == WHOLE_TEXTS else ("asked",)
            yield {**sample, **dict.fromkeys(texts)}


def evaluated(model: EngineModel, benchmarks: Benchmarks) -> Scores:
    """What the model scores in benchmarks whose requests are built. Raises UserError where answers cannot be scored."""
    from lm_eval import evaluator

    with quiet(), told(f"task.tasks: {', '.join(benchmarks.names)}: the answers cannot be scored"):
        found = evaluator.evaluate(
            lm=model,
            task_dict=benchmarks.loaded,
            limit=benchmarks.limit,
            apply_chat_template=benchmarks.chat,
            fewshot_as_multiturn=benchmarks.chat,
        )
    results: Mapping[str, Mapping[str, Any]] = {**found["results"], **found.get("groups", {})}
    values, errors = {}, {}
    for task, said in results.items():
        numbers = {_name(key): value for key, value in said.items() if isinstance(value, int | float) and "," in key}
        values[task] = {key: float(value) for key, value in numbers.items() if not _is_error(key)}
        errors[task] = {_without_error(key): float(value) for key, value in numbers.items() if _is_error(key)}
    counts = {task: said["effective"] for task, said in found.get("n-samples", {}).items()}
    samples = [
        _sample(task, benchmarks.tasks[task].OUTPUT_TYPE, sample)
        for task, each in found.get("samples", {}).items()
        for sample in each
    ]
    return Scores(values, errors, counts, samples)


def _sample(task: str, output_type: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """A question and a filter: ``responses`` are the model's, ``answers`` what the filter made of them."""
    return {
        "task": task,
        "output_type": output_type,
        "document": said["doc_id"],
        "asked": said["arguments"],
        "right": said["target"],
        "responses": said["resps"],
        "filter": said["filter"],
        "answers": said["filtered_resps"],
        "metrics": {name: said[name] for name in said["metrics"]},
    }


def _name(key: str) -> str:
    """``exact_match,strict`` → ``exact_match.strict``; without the filter that takes answers as they are."""
    metric, _, kind = key.partition(",")
    return metric if kind == PLAIN else f"{metric}.{kind}"


def _is_error(name: str) -> bool:
    return name.partition(".")[0].endswith("_stderr")


def _without_error(name: str) -> str:
    metric, dot, kind = name.partition(".")
    return f"{metric.removesuffix('_stderr')}{dot}{kind}"
