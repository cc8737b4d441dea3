"""What one pipeline scored: as data, as lines, and in a table beside others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.guarantees import Guarantee, weakest
from spec_sdk.report import Column as RunColumn
from spec_sdk.report import closing_table
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.tables import number, percent, print_table

if TYPE_CHECKING:
    from spec_sdk.evaluation.language_model import EngineModel
    from spec_sdk.evaluation.scores import Scores
    from spec_sdk.pipeline import Pipeline

LARGE = 1e6
"""From here on a score is told by its order of magnitude: perplexities have no end."""


@dataclass(frozen=True)
class Run:
    """What one pipeline scored, and what its answers cost."""

    pipeline: Pipeline
    model: EngineModel
    scores: Scores
    summary: Mapping[str, Any]

    @property
    def guarantee(self) -> Guarantee:
        """The weakest of its answers', by what each was sampled by; as of greedy ones where there is none."""
        return weakest(*map(self.pipeline.guarantee_under, self.model.sampled_by or {SamplingParams()}))

    @property
    def scored_by(self) -> str | None:
        """Whose likelihoods the scores go by; None where only answers were scored."""
        if not self.model.scores:
            return None
        return "pipeline, token by token" if self.model.scorer.relaxed else "target"

    @property
    def hit_rate_scoring(self) -> float | None:
        """Of predictions of attention while likelihoods were computed."""
        predicted = sum(score.predicted for score in self.model.scores)
        return sum(score.hits for score in self.model.scores) / predicted if predicted else None

    @property
    def changed(self) -> str | None:
        """What had no room in the context, in words; None where all had."""
        cut, shortened = self.model.prompts_cut, self.model.answers_shortened
        parts = [
            f"the beginning of {_counted(cut, 'prompt')} cut off" if cut else "",
            f"the longest length of {_counted(shortened, 'answer')} shortened" if shortened else "",
        ]
        told = " and ".join(filter(None, parts))
        return f"{self.pipeline.name}: {told} to fit model.context={self.model.max_length}" if told else None

    def samples(self, prompts: bool) -> Iterator[str]:
        """What was asked and answered, a line of JSON for each question and filter; ``prompts``: with their texts."""
        for sample in self.scores.samples if prompts else self.scores.without_prompts():
            yield json.dumps(sample, ensure_ascii=False, default=_plain) + "\n"

    def as_data(self) -> dict[str, Any]:
        """The summary of a run, with the scores."""
        return {
            **self.summary,
            "scores": self.scores.of,
            "standard_errors": self.scores.error_of,
            "questions": self.scores.questions,
            "prompts_cut": self.model.prompts_cut,
            "answers_shortened": self.model.answers_shortened,
            "loglikelihood": {
                "texts": len(self.model.scores),
                "scored_by": self.scored_by,
                "hit_rate": self.hit_rate_scoring,
            },
        }


def show(runs: Sequence[Run]) -> None:
    """Scores, a column for each pipeline, and what the answers cost."""
    rows = []
    for task, metrics in runs[0].scores.of.items():
        for metric in metrics:
            cells = [_with_error(run.scores, task, metric) for run in runs]
            rows.append([f"{task}: {metric}", *cells, str(runs[0].scores.questions.get(task, "–"))])
    scored = [run.scored_by for run in runs]
    if any(scored):
        rows.append(["likelihoods by", *(by or "–" for by in scored), ""])
    rates = [run.hit_rate_scoring for run in runs]
    if any(rate is not None for rate in rates):
        rows.append(["attention hit rate, likelihoods", *map(percent, rates), ""])
    print_table("", ["benchmark", *(run.pipeline.name for run in runs), "questions"], rows)
    if runs[0].summary["new_tokens"]:
        columns = [RunColumn(run.pipeline.name, dict(run.summary), run.guarantee) for run in runs]
        closing_table(*columns)


def _with_error(scores: Scores, task: str, metric: str) -> str:
    value = scores.of.get(task, {}).get(metric)
    error = scores.error_of.get(task, {}).get(metric)
    return _score(value) if error is None else f"{_score(value)} ± {_score(error)}"


def _score(value: float | None) -> str:
    return number(value, 4) if value is None or abs(value) < LARGE else f"{value:g}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _plain(value: Any) -> Any:
    """Numbers of NumPy as numbers, all else that JSON does not know as text."""
    return value.item() if hasattr(value, "item") else str(value)
