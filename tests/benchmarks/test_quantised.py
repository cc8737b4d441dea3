"""What the benchmark of quantised targets compares, against what is known beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quantised import compared
from spec_sdk.bench.scripts import build
from tests.support.text_checkpoints import write_text_checkpoint

SHAPE: Any = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
PROMPTS = [[5, 9, 17, 30, 5, 9], [7, 3, 12, 60]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_text_checkpoint(directory, **SHAPE)
    return directory


def test_a_model_beside_itself_and_beside_a_rounded_one(checkpoint: Path) -> None:
    dense, same, four = (
        build("pipeline=vanilla", f"model.target={checkpoint}", f"model.weights={weights}")
        for weights in ("dense", "auto", "int4")
    )
    nothing = compared(dense, same, PROMPTS, 4)
    assert nothing["largest_difference"] == nothing["root_mean_square_difference"] == 0
    assert nothing["greedy_agreement"] == nothing["greedy_agreement_in_answers"] == 1
    assert (nothing["prompts"], nothing["positions"]) == (2, 6 + 4 + 2 * 3)
    rounded = compared(dense, four, PROMPTS, 4)
    assert 0 < rounded["root_mean_square_difference"] < rounded["largest_difference"] < rounded["largest_logit"]
    assert rounded["greedy_agreement"] < 1


def test_the_whole_report(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.quantised", f"model.target={checkpoint}", "--weights=int8"]
    output = tmp_path / "report.json"
    subprocess.run([*command, "--count=2", "--longest=300", "--new-tokens=3", f"--output={output}"], check=True)
    report = json.loads(output.read_text())
    assert report["weights"] == "int8" and report["logits"]["prompts"] == 2
    dense, eight = report["memory"]["dense"], report["memory"]["int8"]
    assert eight["target_weights"] < dense["target_weights"] / 3 and eight["kv_cache"] == dense["kv_cache"] / 2
    assert min(dense["resident"], eight["resident"]) > dense["target_weights"]
