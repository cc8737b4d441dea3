"""ALSpec's tables on tiny models: every setting has a cell of every task, and the cells agree with what they are of."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alspec_tables
from spec_sdk.bench.scripts import run_script
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_checkpoints import write_checkpoint

WORDS = "a b c d e f g h i j k l m n o p q r s t"


def write_prompts(place: Path) -> Path:
    tasks = ("summarization", "rag", "summarization", "rag", "summarization", "rag")
    prompts = [{"turns": [f"{WORDS} {i} {WORDS[2 * i :]}"], "task": task} for i, task in enumerate(tasks)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return place / "prompts.jsonl"


def report_of(place: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    output = place / "report.json"
    files = [f"--prompts={write_prompts(place)}", f"--output={output}", f"model.target={place / 'model'}"]
    argv = ["alspec_tables", *files, "--count=4", "--new-tokens=6", "--size=3", "--needle-texts=0", *options]
    monkeypatch.setattr("sys.argv", argv)
    assert alspec_tables.main() == 0
    report: dict[str, Any] = json.loads(output.read_text())
    return report


def test_a_setting_has_a_cell_of_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    options = ("--thresholds", "0", "0.8", "--static=0.8", "--likelihood=0.01", "--calibration=2")
    report = report_of(tmp_path, monkeypatch, *options)
    rows = {row["setting"]: row for row in report["rows"]}
    names = list(rows)
    assert names[:3] == ["baseline", "λ = 0", "λ = 0.8"] and names[-1] == "λ = inf"
    assert names[3] == "static, p > 0.01" and names[4].startswith("static, ")
    for row in report["rows"]:
        assert set(row["tasks"]) == set(report["tasks"]) == {"summarization", "rag"}
        for cell in row["tasks"].values():
            assert 0 <= cell["score"] <= 1
    for task in report["tasks"]:
        cell = {name: row["tasks"][task] for name, row in rows.items()}
        # plain decoding predicts nothing and agrees with itself; at λ = 0 all is predicted and nothing is taken
        assert cell["baseline"]["replaced"] is None
        assert cell["λ = 0"]["replaced"] == 0 and cell["λ = inf"]["replaced"] == 1
        assert cell["baseline"]["score"] == cell["λ = 0"]["score"] == 1
        assert cell["baseline"]["kl_mean"] < 1e-8 < cell["λ = inf"]["kl_mean"]
        assert 0 <= cell["λ = 0.8"]["replaced"] <= 1
        for name in names[3:-1]:
            assert cell[name]["replaced"] == pytest.approx(len(rows[name]["layers"]) / 5)
    assert "summarization" in capsys.readouterr().out


def test_needles_are_counted_as_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    write_text_checkpoint(tmp_path / "model")
    options = ("--thresholds", "0", "--calibration=0", "--needle-texts=1", "--needle-context=600", "--count=1")
    report = report_of(tmp_path, monkeypatch, *options)
    found = {row["setting"]: row["tasks"]["needles"] for row in report["rows"]}
    assert found["baseline"]["replaced"] is None and found["λ = 0"]["replaced"] == 0
    assert found["λ = inf"]["replaced"] == 1
    assert found["baseline"]["score"] == found["λ = 0"]["score"] == found["λ = 0"]["found"] / found["λ = 0"]["asked"]
    assert math.isclose(found["baseline"]["nll_per_token"], found["λ = 0"]["nll_per_token"], rel_tol=1e-4)


def test_static_layers_need_prompts_that_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    monkeypatch.setattr(
        "sys.argv",
        ["alspec_tables", f"--prompts={write_prompts(tmp_path)}", f"model.target={tmp_path / 'model'}", "--size=3"]
        + ["--count=6", "--new-tokens=4", "--needle-texts=0", f"--output={tmp_path / 'report.json'}"],
    )
    assert run_script(alspec_tables.main) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "0 prompts are left" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([], None),
        ([[None, None]], None),
        ([[True, False]], 0.5),
        # a layer that never predicts counts among all, a pass without predictions does not
        ([[True, None], [None, None]], 0.5),
        ([[True, True], [False, True]], 0.75),
    ],
)
def test_the_share_that_is_replaced(passes: Any, expected: float | None) -> None:
    assert alspec_tables.replaced(passes) == expected


def test_without_the_harness_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "lm_eval" else find(name))
    argv = ["alspec_tables", f"model.target={tmp_path / 'model'}", "--benchmarks", "gsm8k_cot"]
    monkeypatch.setattr("sys.argv", argv)
    assert run_script(alspec_tables.main) == 2
    assert "pip install 'spec-sdk[eval]'" in capsys.readouterr().err
