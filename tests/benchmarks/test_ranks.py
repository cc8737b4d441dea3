"""Processes beside one of them: every pipeline has its ratio, and the tokens are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_checkpoints import write_checkpoint


@pytest.mark.full
def test_two_processes_and_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    prompts = [{"turns": [f"a b {i} c d"], "task": "one"} for i in range(2)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    output, pipelines = tmp_path / "ranks.json", ["vanilla", "easyspec_paper"]
    files = [f"--prompts={tmp_path / 'prompts.jsonl'}", f"--output={output}", f"model.target={tmp_path / 'model'}"]
    command = [sys.executable, "-m", "benchmarks.ranks", *files, "--new-tokens=6", "--rounds=2", "--pipelines"]
    done = subprocess.run([*command, *pipelines], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert list(report["pipelines"]) == pipelines and report["prompts"] == 2
    assert report["sum_us"] > 0
    for measured in report["pipelines"].values():
        assert measured["same_tokens"] and len(measured["rounds"]) == 2 and measured["speedup"] > 0
        assert {round["spread"]["new_tokens"] for round in measured["rounds"]} == {12}
    assert done.stdout.count("same tokens: True") == 2
