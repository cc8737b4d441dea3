"""The steps of a training: batches in an order that the step alone says, so that a killed run goes on to the bit.

Legend: R predictions of a step, A labelled positions, K labels of a position, M model dim.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spec_sdk.duration import duration
from spec_sdk.ranks import Ranks
from spec_sdk.training.complements import Complements
from spec_sdk.training.distillation import backward_in_chunks
from spec_sdk.training.learner import Batch, Learner, parameters_in_order
from spec_sdk.training.measured_acceptance import measure
from spec_sdk.training.packing import BatchOrder, fill_rows
from spec_sdk.training.samples import Sample
from spec_sdk.training.training_state import restore_state, save_state

TELL_EVERY_S = 10.0
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Schedule:
    """``warmup`` steps up to ``learning_rate``, then half a cosine down to a tenth of it at step ``steps``."""

    steps: int
    learning_rate: float
    warmup: int

    def at(self, step: int) -> float:
        """The learning rate of step ``step``, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


@dataclass(frozen=True)
class TrainingPlan:
    """How a draft model or head is trained. ``rows``: of a step, over all processes.

    ``depth``: of the chains that evaluations measure; ``evaluation_tokens``: answer tokens that they read, at most.
    ``right_weight``: in the loss, of a token that a complement gets right.
    """

    schedule: Schedule
    width: int
    rows: int
    seed: int
    weight_decay: float
    clip: float
    depth: int
    evaluate_every: int
    evaluation_tokens: int
    save_every: int
    right_weight: float = 1.0


class Training:
    """Trains ``model`` on ``samples``, of which the held-out ones only measure it.

    ``directory``: where its state is kept; ``identity``: what it follows from. ``tell`` gets lines of progress. With
    ``complements`` a token that one of them gets right weighs less. Several ``ranks`` have a part of each step's rows
    each, and sum their derivatives through accelerate.
    """

    def __init__(
        self,
        model: Learner,
        samples: Sequence[Sample],
        plan: TrainingPlan,
        directory: Path,
        identity: Mapping[str, Any],
        ranks: Ranks,
        device: torch.device,
        tell: Callable[[str], None],
        complements: Complements | None = None,
    ) -> None:
        from accelerate import Accelerator

        self.model, self.plan, self.ranks, self.device, self.tell = model, plan, ranks, device, tell
        self._directory, self._identity, self._complements = directory, identity, complements
        self._seen = [sample for sample in samples if not sample.held_out]
        self._held_out = evaluation_rows(samples, plan)
        lengths = [len(sample.prompt) + len(sample.answer) - 1 for sample in self._seen]
        self._order = BatchOrder(lengths, plan.width, plan.rows, plan.seed)
        self._parameters = parameters_in_order(model)
        self._optimizer = torch.optim.AdamW(
            [parameter for _, parameter in self._parameters],
            lr=plan.schedule.learning_rate,
            betas=BETAS,
            weight_decay=plan.weight_decay,
        )
        # accelerate averages over processes; precision is this class's own business
        self._accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
        self.progress = restore_state(directory, identity, self._parameters, self._optimizer)
        self._shared: Any = self._accelerator.prepare_model(model) if ranks.size > 1 else model

    def run(self) -> list[dict[str, Any]]:
        """All steps that are left; the evaluations of all, the first of the untrained cut."""
        progress, steps = self.progress, self.plan.schedule.steps
        if not progress.curve:
            self._evaluate()
        began, first, told = time.perf_counter(), progress.step, 0.0
        for batch, labels in self._batches():
            loss = self._step(batch, labels)
            progress.step += 1
            last = progress.step == steps
            now = time.perf_counter()
            if now - told > TELL_EVERY_S or last:
                told = now
                left = (now - began) / (progress.step - first) * (steps - progress.step)
                rate = self.plan.schedule.at(progress.step - 1)
                self.tell(f"step {progress.step} of {steps}: loss {loss:.3f}, rate {rate:.1e}, {duration(left)} left")
            if last or progress.step % self.plan.evaluate_every == 0:
                self._evaluate()
            if last or progress.step % self.plan.save_every == 0:
                self._save()
        return progress.curve

    def _save(self) -> None:
        if self.ranks.is_leader:
            save_state(self._directory, self._identity, self.progress, self._parameters, self._optimizer)

    def _batches(self) -> Iterator[tuple[Batch, int]]:
        """The rows of this rank in the steps that are left, and the labels of all ranks' rows."""
        done = 0
        for epoch in range(self.plan.schedule.steps):
            steps = self._order.epoch(epoch)
            for rows in steps[max(0, self.progress.step - done) :]:
                if self.progress.step >= self.plan.schedule.steps:
                    return
                whole = [[self._seen[i] for i in row] for row in rows]
                # a rank without a row of its own computes the first one, for nothing
                mine = whole[self.ranks.rank :: self.ranks.size]
                batch = self.model.batch(mine or whole[:1], self.plan.width)
                labels = batch.labels if self.ranks.size == 1 else self.model.batch(whole, self.plan.width).labels
                yield batch.to(self.device), labels if mine else 0
            done += len(steps)

    def _step(self, batch: Batch, labels: int) -> float:
        """One step of the optimiser; the mean loss of this rank's labels."""
        rate = self.plan.schedule.at(self.progress.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        # derivatives are averaged over ranks, and the loss is a mean over all ranks' labels
        scale = self.ranks.size / labels if labels else 0.0
        state_RM = self._shared(batch)
        label_R, step_R = self.model.targets(batch)
        weight_R = self.model.loss_weights(step_R)
        if self._complements is not None:
            right_R = self._complements.right(batch)[label_R].float()
            weight_R = (1 if weight_R is None else weight_R) * (1 - (1 - self.plan.right_weight) * right_R)
        total = backward_in_chunks(
            state_RM,
            self.model.logits,
            self.model.places(batch.top_id_AK[label_R]),
            batch.top_logprob_AK[label_R],
            scale,
            weight_R,
        )
        parameters = [parameter for _, parameter in self._parameters]
        torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(total) / max(1, batch.labels)

    def _evaluate(self) -> None:
        if not self.ranks.is_leader:
            self.progress.curve.append({})
            return
        plan = self.plan
        found = measure(self.model, self._held_out, plan.width, plan.depth, self.device, self._complements)
        report = found.report()
        self.progress.curve.append({"step": self.progress.step, **report})
        self.tell(f"held out, step {self.progress.step}: {described(report)}")


def evaluation_rows(samples: Sequence[Sample], plan: TrainingPlan) -> list[list[Sample]]:
    """The held-out samples, as many as evaluations read, in rows: of every kind about as many, half of them greedy."""
    chosen: list[Sample] = []
    for greedy in (True, False):
        group = [sample for sample in samples if sample.held_out and (sample.temperature == 0) == greedy]
        seen: Counter[str] = Counter()
        turns = []
        for sample in group:
            turns.append((seen[sample.kind], sample.number))
            seen[sample.kind] += 1
        tokens = 0
        for _, sample in sorted(zip(turns, group, strict=True), key=lambda pair: pair[0]):
            if tokens < plan.evaluation_tokens / 2:
                chosen.append(sample)
                tokens += len(sample.answer)
    lengths = [len(sample.prompt) + len(sample.answer) - 1 for sample in chosen]
    rows = fill_rows(lengths, range(len(chosen)), plan.width)
    return [[chosen[i] for i in row] for row in rows]


def described(report: Mapping[str, Any]) -> str:
    """An evaluation in a line."""
    parts = {"loss": "loss", "acceptance_rate": "acceptance rate"}
    parts |= {"mean_accepted_tokens": "MAT", "mean_accepted_tokens_sampled": "MAT at temperature 1"}
    parts["covered_rate"] = "covered with complements"
    known = [(name, report[key]) for key, name in parts.items() if report.get(key) is not None]
    return ", ".join(f"{name} {value:.3f}" for name, value in known) or "nothing to measure on"


def precision_of(name: str, device: torch.device) -> torch.dtype:
    """Of matrix products under ``task.precision=name``: ``auto`` is bfloat16 where the device multiplies it."""
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cpu":
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
