"""backend=auto: which backend, dtype and sampler it means, and the line that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.config import chosen_backend
from spec_sdk.config.chosen_backend import backend_choice, suited_backend
from spec_sdk.config.composing import settings_for
from spec_sdk.contracts import Suitability
from spec_sdk.errors import UserError
from spec_sdk.settings import Settings
from spec_sdk_backends.accelerate import AccelerateBackend
from spec_sdk_backends.cuda import CudaBackend
from tests.cli.conftest import Result

SUITED = Suitability(True, "Some GPU, and Triton is installed", 100, "bfloat16")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    chosen_backend._suited.cache_clear()
    yield
    chosen_backend._suited.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the cuda backend says that it can be used."""
    monkeypatch.setattr(chosen_backend, "has_accelerator", lambda: True)
    monkeypatch.setattr(CudaBackend, "suitability", lambda config: SUITED)


def chosen(*overrides: str) -> tuple[str, str, str]:
    settings = settings_for(overrides)
    return str(settings.backend["name"]), settings.model.dtype, str(settings.sampler["name"])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ("cuda", "bfloat16", "exact")),
        (("backend=auto",), ("cuda", "bfloat16", "exact")),
        (("backend=auto", "backend.index=1"), ("cuda", "bfloat16", "exact")),
        (("backend=cuda",), ("cuda", "bfloat16", "exact")),
        (("backend=cpu",), ("cpu", "float32", "exact")),
        (("model.dtype=float16",), ("cuda", "float16", "exact")),
        (("sampler=reference",), ("cuda", "bfloat16", "reference")),
        (("sampler=sigmoid", "sampler.alpha=-3"), ("cuda", "bfloat16", "sigmoid")),
        (("pipeline=alspec_easyspec_tree", "model.dtype=auto"), ("cuda", "bfloat16", "exact")),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_with_a_gpu(overrides: tuple[str, ...], expected: tuple[str, str, str]) -> None:
    assert chosen(*overrides) == expected


def test_a_backend_may_have_a_sampler_that_suits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    suited = Suitability(True, "its own", 100, "bfloat16", "sigmoid")
    monkeypatch.setattr(CudaBackend, "suitability", lambda config: suited)
    assert chosen("backend=cuda") == ("cuda", "bfloat16", "sigmoid")
    assert chosen("backend=cuda", "sampler=exact") == ("cuda", "bfloat16", "exact")


@pytest.mark.usefixtures("gpu")
def test_what_a_pipelines_yaml_chooses_stays(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    yaml = "# @package _global_\ndefaults:\n  - override /drafter: suffix\n{more}pipeline:\n  name: own\n"
    for more, expected in (
        ("", ("cuda", "bfloat16", "exact")),
        ("  - override /sampler: reference\n", ("cuda", "bfloat16", "reference")),
        ("  - override /backend: cpu\n", ("cpu", "float32", "exact")),
    ):
        (tmp_path / "pipeline" / "own.yaml").write_text(yaml.format(more=more))
        assert chosen(f"hydra.searchpath=[file://{tmp_path}]", "pipeline=own") == expected


@pytest.mark.usefixtures("gpu")
def test_the_sampler_that_was_chosen_for_the_backend_is_not_the_pipelines_overridden_one() -> None:
    assert settings_for(["pipeline=suffix"]).pipeline.overridden == []


def test_without_an_accelerator_no_plugin_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> Any:
        raise AssertionError("the plugins were asked, which imports torch")

    monkeypatch.setattr(chosen_backend, "has_accelerator", lambda: False)
    monkeypatch.setattr(chosen_backend, "suited_backend", asked)
    assert chosen() == ("cpu", "float32", "exact")


def test_a_driver_is_seen_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chosen_backend, "DRIVER_FILES", (str(tmp_path / "none"),))
    assert not chosen_backend.has_accelerator()
    monkeypatch.setattr(chosen_backend, "DRIVER_FILES", (str(tmp_path / "none"), str(tmp_path)))
    assert chosen_backend.has_accelerator()


def lacking(config: Any) -> Suitability:
    return Suitability(False, "no pebbles: install them", 100)


def test_what_others_lack_is_said_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "suitability", lacking)
    assert suited_backend() == ("cpu", "cuda: no pebbles: install them")


def test_the_highest_rank_is_taken_and_what_raises_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "suitability", lambda config: SUITED)
    monkeypatch.setattr(AccelerateBackend, "suitability", lambda config: Suitability(True, "more of them", 101))
    assert suited_backend() == ("accelerate", "more of them")
    chosen_backend._suited.cache_clear()
    monkeypatch.setattr(AccelerateBackend, "suitability", lambda config: 1 / 0)
    assert suited_backend() == ("cuda", SUITED.reason)


@pytest.mark.usefixtures("gpu")
def test_one_line_says_why_unless_a_backend_was_named() -> None:
    def line(*overrides: str) -> str | None:
        settings = settings_for(overrides)
        return backend_choice(Settings(**{**vars(settings), "overrides": overrides}))

    assert line() == "backend=auto: cuda, bfloat16, sampler exact (Some GPU, and Triton is installed)"
    assert line("backend=auto", "model.dtype=float32", "sampler=reference") == (
        "backend=auto: cuda, float32, sampler reference (Some GPU, and Triton is installed)"
    )
    assert line("backend=cuda") is None and line("backend=cpu") is None
    assert line("task=check", "plugin=cuda") is None, "it is the one to check"
    assert line("task=check", "plugin=suffix") is not None


def test_where_there_is_nothing_to_choose_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_backend, "has_accelerator", lambda: False)
    settings = settings_for([])
    assert backend_choice(settings) is None
    assert backend_choice(Settings(**{**vars(settings), "overrides": ("backend=auto",)})) is not None


@pytest.mark.usefixtures("fake")
def test_the_line_is_on_stderr_and_in_the_metrics(cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "suitability", lacking)
    line = "backend=auto: cpu, float32, sampler exact (cuda: no pebbles: install them)"
    result = cli("prompt=hello", "output_dir=out", "max_new_tokens=3", "backend=auto")
    assert result.err.count(line) == 1
    assert json.loads(Path("out/metrics.json").read_text())["backend_choice"] == line
    assert "backend=auto" not in cli("task=plugins").err


def test_a_wrong_name_is_told_that_there_is_auto() -> None:
    with pytest.raises(UserError, match=r"^backend: unknown backend 'xyz'; there are: accelerate, auto, cpu"):
        settings_for(["backend=xyz"])
