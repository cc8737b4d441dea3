"""Which samples a data set has, and which of them measure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.sample_plan import SHIPPED_OPENINGS, SamplePlan, read_openings
from spec_sdk.training.samples import Sample
from spec_sdk.training.training_loop import Schedule, TrainingPlan, evaluation_rows


def test_shares_are_those_that_were_asked_for() -> None:
    openings = read_openings(SHIPPED_OPENINGS, "task.openings")
    texts = [("mine", f"text {i}") for i in range(10)]
    plan = SamplePlan(texts[:4], texts[4:], openings, 7, 0.25, [0.5])
    samples = [plan[i] for i in range(4000)]
    assert samples == [plan[i] for i in range(4000)] and plan.samples is None
    assert [sample.prompt for sample in samples[:10]] == [text for _, text in texts]
    assert all(sample.held_out for sample in samples[:4])
    held_out = [sample for sample in samples if sample.held_out]
    assert abs(len(held_out) / 4000 - 0.25) < 0.03
    assert abs(sum(sample.temperature == 0 for sample in held_out) / len(held_out) - 0.5) < 0.06
    assert {sample.temperature for sample in held_out} == {0.0, 1.0}
    assert {sample.temperature for sample in samples if not sample.held_out} == {0.5}
    kinds = Counter(sample.kind for sample in samples[10:])
    assert kinds.keys() == openings.keys() and max(kinds.values()) < 2 * min(kinds.values())
    assert SamplePlan([], [], openings, 8, 0.25, [0.5])[50] != plan[50]


def test_every_answer_has_one_of_the_temperatures() -> None:
    openings = read_openings(SHIPPED_OPENINGS, "task.openings")
    texts = [("mine", f"text {i}") for i in range(10)]
    greedy, mixed = (SamplePlan(texts[:4], texts[4:], openings, 7, 0.25, given) for given in ([0.0], [0.0, 0.0, 0.8]))
    samples = [mixed[i] for i in range(4000)]
    assert [replace(sample, temperature=0.0) for sample in samples if not sample.held_out] == [
        greedy[i] for i in range(4000) if not greedy[i].held_out
    ]
    assert [sample for sample in samples if sample.held_out] == [greedy[i] for i in range(4000) if greedy[i].held_out]
    counts = Counter(sample.temperature for sample in samples if not sample.held_out)
    assert counts.keys() == {0.0, 0.8} and abs(counts[0.8] / counts.total() - 1 / 3) < 0.03


def test_evaluations_read_of_every_kind() -> None:
    def sample(number: int, kind: str, temperature: float, held_out: bool = True) -> Sample:
        labels = torch.zeros(10, 2, dtype=torch.int32), torch.zeros(10, 2), torch.zeros(10)
        return Sample(number, kind, held_out, temperature, [1, 2], [3] * 10, *labels)

    samples = [sample(i, "many" if i % 20 else "few", float(i % 2)) for i in range(100)]
    samples.append(sample(100, "few", 0.0, held_out=False))
    config = TrainDraftConfig()
    plan = TrainingPlan(Schedule(1, 1.0, 0), 64, 1, 0, 0.0, 1.0, 5, 1, 100, config.save_every)
    chosen = [one for row in evaluation_rows(samples, plan) for one in row]
    assert Counter(one.temperature for one in chosen) == {0.0: 5, 1.0: 5}
    assert Counter(one.kind for one in chosen if one.temperature == 0) == {"few": 2, "many": 3}
    assert all(one.held_out for one in chosen)


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = Schedule(100, 1.0, 10)
    rates = [schedule.at(step) for step in range(100)]
    assert rates[:3] == [0.1, 0.2, 0.3] and max(rates) == rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert abs(schedule.at(100) - 0.1) < 1e-12 and abs(schedule.at(55) - 0.55) < 1e-12
