"""The quality benchmarks on a tiny model: they run, and what they write is whole and agrees with itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import alspec_quality, levels
from spec_sdk.bench.answers import Prompt, answer
from spec_sdk.bench.scripts import build
from spec_sdk.needles import build_haystack, measure
from spec_sdk.pipeline import Pipeline
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The options that name a tiny model and prompts for it."""
    write_checkpoint(tmp_path / "model", "smollm", 3)
    words = "a b c d e f g h i j k l m n o p q r s t"
    prompts = [{"turns": [f"{words} {i} {words[2 * i :]}"], "task": "summarization"} for i in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return [
        f"--prompts={tmp_path / 'prompts.jsonl'}",
        f"--output={tmp_path / 'report.json'}",
        f"model.target={tmp_path / 'model'}",
        *("--count=2", "--new-tokens=6", "--shortest=20", "--longest=60", "--size=3"),
    ]


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def report_of(tmp_path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert report["machine"] and report["dtype"] == "float32"
    return report


def test_the_trade_off_goes_from_exact_to_pure_prediction(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--calibration=1", "--text-tokens=4", "--needle-texts=0", "--static", "0.25"]
    monkeypatch.setattr("sys.argv", ["alspec_quality", *files, *options])
    assert alspec_quality.main() == 0
    report = report_of(tmp_path)
    found = report["predictors"]["attention_sink"]
    rows = found["thresholds"]
    assert [row["threshold"] for row in rows] == [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, "inf"]
    exact, pure = rows[0], rows[-1]
    assert (exact["approximated"], pure["approximated"]) == (0, 1)
    assert exact["free"]["prompts_with_equal_tokens"] == 2
    for kind in ("answers", "text"):
        assert exact[kind]["kl_max"] < 1e-8 < pure[kind]["kl_mean"]
        assert exact[kind]["top1_agreement"] == 1
        assert exact[kind]["perplexity"] == pytest.approx(report["exact"][kind]["perplexity"], rel=1e-5)
        assert exact[kind]["positions"] == report["exact"][kind]["positions"]
    dynamic = next(row for row in rows if row["threshold"] == 0.25)
    assert [row["rule"] for row in found["static"]] == ["most accepted", "least error", "evenly spread"]
    for row in found["static"]:
        assert row["approximated"] == pytest.approx(len(row["layers"]) / 5)
        assert len(row["layers"]) == max(1, int(5 * dynamic["approximated"]))
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "predictions hit" in page


def test_the_needle_test_of_two_texts_adds_up(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path)

    def pipeline(threshold: float) -> Pipeline:
        options = ("predictor.size=8", f"attention_verifier.threshold={threshold}", f"model.target={tmp_path}")
        return build("pipeline=alspec", *options)

    exact = pipeline(0)
    texts = [build_haystack(exact.tokenizer, 512, hashes=1, facts=1, seed=seed) for seed in (0, 1)]
    scores = [alspec_quality.needle_score(pipeline(threshold), texts) for threshold in (0, math.inf)]
    vanilla = measure(exact.vanilla(), texts[0]) + measure(exact.vanilla(), texts[1])
    assert [score["asked"] for score in scores] == [4, 4]
    assert scores[0]["nll_per_token"] == pytest.approx(vanilla.nll_per_token, abs=1e-4)
    assert abs(scores[1]["nll_per_token"] - vanilla.nll_per_token) > 1e-3


def test_the_exact_answers_are_those_of_the_vanilla_pipeline(files: list[str]) -> None:
    options = [option for option in files if option.startswith("model.")]
    prompt = Prompt("a b c d e f g h", "summarization")
    answered = alspec_quality.answered(build("pipeline=alspec", *options), prompt, 6)
    assert answered.passage.after == answer(build("pipeline=vanilla", *options), [prompt], 6)[0].tokens


def test_all_levels_side_by_side(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["levels", *files, "--thresholds", "0", "0.6"])
    assert levels.main() == 0
    report = report_of(tmp_path)
    found = report["pipelines"]
    assert set(found) == {*levels.ALONE, *(f"{name}, λ = {x}" for name in levels.ATTENTION for x in ("0", "0.6"))}
    for name, entry in found.items():
        relaxed = "λ" in name
        assert entry["guarantee"] == ("relaxed" if relaxed else "exact")
        if not relaxed or name.endswith("λ = 0"):
            assert entry["prompts_with_equal_tokens"] == 2
            assert entry["nll"] == pytest.approx(entry["nll_of_vanilla"])
        assert bool(entry["kernels"]) == relaxed
        for kernel in entry["kernels"]:
            assert kernel["share_of_predictions"] == 1
            assert (kernel["calls_with_several_rows"] > 0) == name.startswith("all three")
    trees = found["all three, λ = 0.6"]
    assert trees["row_hit_rate"] >= trees["attention"]["hit_rate"]
