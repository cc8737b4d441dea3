"""A draft model that learns what others get wrong: its weights in the loss, and what both together cover."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.ranks import ALONE
from spec_sdk.training.complements import Complements
from spec_sdk.training.draft_directory import draft_settings, write_draft
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.packing import pack
from spec_sdk.training.samples import Sample
from spec_sdk.training.trainable import TrainableDraft
from spec_sdk.training.training_loop import Schedule, Training, TrainingPlan
from tests.training.conftest import QUICK

CPU = torch.device("cpu")


def sample(tokens: list[int]) -> Sample:
    rows = len(tokens) - 3
    labels = torch.zeros(rows, 1, dtype=torch.int32), torch.zeros(rows, 1), torch.zeros(rows)
    return Sample(0, "kind", True, 0.0, tokens[:3], tokens[3:], *labels)


def test_a_token_is_right_if_it_is_the_first_choice_of_one_of_them(tmp_path: Path, tiny_target: Path) -> None:
    target = open_checkpoint(str(tiny_target))
    drafts = {"a": TrainableDraft(target, DraftShape([0]), CPU), "b": TrainableDraft(target, DraftShape([1, 2]), CPU)}
    for (name, model), layers in zip(drafts.items(), ([0], [1, 2]), strict=True):
        write_draft(tmp_path / name, model, target, draft_settings(target, DraftShape(layers), False), "float32")
    chosen: list[int] = [5, 9, 12]
    # a text that both, one or neither of them would write, in turns
    for turn in range(24):
        batch = pack([[sample([*chosen, 0])]], 64)
        with torch.no_grad():
            choices = [int(model.logits(model(batch))[-1].argmax()) for model in drafts.values()]
        chosen.append([*choices, 7][turn % 3])
    batch = pack([[sample([*chosen, 0])]], 64)
    with torch.no_grad():
        firsts = {name: model.logits(model(batch)).argmax(-1) for name, model in drafts.items()}
    found = Complements([str(tmp_path / "a"), str(tmp_path / "b")], target, CPU, torch.float32)
    right_A = found.right(batch)
    assert torch.equal(right_A, (firsts["a"] == batch.next_A) | (firsts["b"] == batch.next_A))
    alone_A = Complements([str(tmp_path / "a")], target, CPU, torch.float32).right(batch)
    assert torch.equal(alone_A, firsts["a"] == batch.next_A) and 0 < alone_A.sum() < right_A.sum() < len(right_A)


def continued(model: TrainableDraft, start: list[int], tokens: int, choice: int) -> list[int]:
    """A text that goes on with the model's ``choice``-th choice each time."""
    text = list(start)
    for _ in range(tokens):
        with torch.no_grad():
            logit_AV = model.logits(model(pack([[sample([*text, 0])]], 64)))
        text.append(int(logit_AV[-1].topk(choice + 1).indices[choice]))
    return text


@pytest.mark.parametrize(("choice", "learns"), [(0, False), (1, True)])
def test_only_what_the_others_get_wrong_is_learnt(choice: int, learns: bool, tmp_path: Path, tiny_target: Path) -> None:
    target = open_checkpoint(str(tiny_target))
    first = TrainableDraft(target, DraftShape([0]), CPU)
    write_draft(tmp_path / "first", first, target, draft_settings(target, DraftShape([0]), False), "float32")
    texts = [continued(first, start, 20, choice) for start in ([5, 9, 12], [30, 2, 8])]
    samples = [replace(sample(text), number=n, held_out=False) for n, text in enumerate(texts)]
    schedule = Schedule(steps=2, learning_rate=0.01, warmup=0)
    plan = TrainingPlan(schedule, 64, 2, 0, 0.0, 1.0, 3, 100, 100, 100, right_weight=0.0)
    weights: dict[str, list[torch.Tensor]] = {}
    for name, others in {"alone": [], "beside it": [str(tmp_path / "first")]}.items():
        model = TrainableDraft(target, DraftShape([1]), CPU)
        before = [parameter.clone() for parameter in model.parameters()]
        complements = Complements(others, target, CPU, torch.float32) if others else None
        quiet: Any = lambda line: None  # noqa: E731
        Training(model, samples, plan, tmp_path / name, {}, ALONE, CPU, quiet, complements).run()
        weights[name] = list(model.parameters())
        moved = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        assert moved == (learns or not others)
    if learns:
        assert all(map(torch.equal, weights["alone"], weights["beside it"]))


def test_the_command(cli: Callable[..., Any], place: Path) -> None:
    data = ("task.data=data", "task.steps=6")
    assert cli(*QUICK, *data, "task.output=first").status == 0
    train = (*QUICK, *data, "task.layers=[1]", "task.output=second")
    done = cli(*train, "task.complements=[first]", "task.right_weight=0")
    assert done.status == 0 and "complementing first" in done.err and "covered with complements" in done.err, done.err
    curve = json.loads((place / "second" / "training.json").read_text())["curve"]
    assert curve[-1]["covered_rate"] >= curve[-1]["acceptance_rate"]
    assert "complements | first" in (place / "second" / "README.md").read_text()
    # what is learnt depends on them: a training goes on only beside the same ones
    again = cli(*train)
    assert again.status == 2 and "task.complements: the training kept in" in again.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("[nowhere]", "task.complements: "),
        ("3", "task.complements: 3 must be a file or a list of files"),
    ],
)
def test_refusals(option: str, message: str, cli: Callable[..., Any], place: Path) -> None:
    assert cli(*QUICK, "task.only=data", "task.tokens=100").status == 0
    done = cli(*QUICK, "task.tokens=100", "task.only=train", f"task.complements={option}")
    assert done.status == 2 and message in done.err and not (place / "draft").exists(), done.err


def test_one_that_is_not_there_is_refused_before_any_work(cli: Callable[..., Any], place: Path) -> None:
    done = cli(*QUICK, "task.complements=[nowhere]")
    assert done.status == 2 and "task.complements: " in done.err and not (place / "draft-training").exists(), done.err
    # who only answers needs none
    assert cli(*QUICK, "task.only=data", "task.tokens=100", "task.complements=[nowhere]").status == 0
