"""Two processes that have a part of every step's rows learn what one learns from all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from spec_sdk.tasks import train_draft
from tests.distributed.support import end, start
from tests.training.conftest import HEAD, QUICK


@pytest.mark.parametrize(
    "options", [pytest.param(QUICK, marks=pytest.mark.full, id="model"), pytest.param(HEAD, id="eagle3")]
)
def test_two_processes_learn_what_one_does(cli: Callable[..., Any], place: Path, options: tuple[str, ...]) -> None:
    quick = [option for option in options if not option.startswith("backend.")]
    train = (*quick, "task.only=train", "task.data=data", "task.steps=6", "task.stored=float32")
    assert cli(*options, "task.only=data", "task.data=data").status == 0
    if options is HEAD:
        assert cli(*options, "task.only=features", "task.data=data").status == 0
    assert cli(*train, "backend.threads=1", "task.output=one").status == 0
    done = end(start(2, ["-m", "spec_sdk", *train, "backend=accelerate", "backend.device=cpu"], place))
    assert [status for status, _, _ in done] == [0, 0], done
    assert done[0][1] == ("drafter.checkpoint=draft\n" if options is HEAD else "model.draft=draft\n")
    assert done[1][1] == ""
    one, two = (load_file(place / name / "model.safetensors") for name in ("one", "draft"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert float((tensor.float() - two[name].float()).abs().max()) < 2e-4, name
    curves = [json.loads((place / name / "training.json").read_text())["curve"] for name in ("one", "draft")]
    for point, other in zip(*curves, strict=True):
        assert point["loss"] == pytest.approx(other["loss"], rel=1e-2)


def test_several_processes_do_not_answer(cli: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_draft, "launched_processes", lambda: 2)
    refused = cli(*QUICK[:3])
    assert refused.status == 2
    assert "error: task.only: several processes train together and do not answer" in refused.err


@pytest.mark.full
def test_answers_are_written_by_one_process(place: Path) -> None:
    done = end(start(2, ["-m", "spec_sdk", *QUICK[:3], "backend=accelerate", "backend.device=cpu"], place))
    assert [status for status, _, _ in done] == [2, 2]
    assert "\nerror: task.only: several processes train together and do not answer" in done[0][2]
