"""The table of drafters on a tiny model: it runs, and what it writes is whole and adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import drafters
from tests.support.tiny_checkpoints import write_checkpoint


def test_every_drafter_has_its_figures_by_task_and_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    prompts = [{"turns": [f"a b {i} c d a b"], "task": "one" if i < 2 else "two"} for i in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    output, options = tmp_path / "drafters.json", ["policy=fixed", "policy.depth=3", "policy.max_nodes=6"]
    chosen = ["prompt_lookup " + " ".join(options), "mixed " + " ".join(options)]
    argv = ["drafters.py", "--drafters", *chosen, "--prompts=3", "--new-tokens=12", f"--output={output}"]
    files = [f"--prompt-file={tmp_path / 'prompts.jsonl'}", "--options", f"model.target={tmp_path / 'model'}"]
    monkeypatch.setattr("sys.argv", [*argv, *files])
    assert drafters.main() == 0
    report = json.loads(output.read_text())
    assert list(report["temperatures"]) == ["0.0", "1.0"] and report["new_tokens"] == 12
    for temperature, found in report["temperatures"].items():
        assert list(found) == ["vanilla", *chosen]
        for name, tasks in found.items():
            assert list(tasks) == ["one", "two", "all"]
            assert tasks["all"]["prompts"] == tasks["one"]["prompts"] + tasks["two"]["prompts"] == 3
            for figures in tasks.values():
                assert figures["speedup"] > 0 and figures["verify_ms_per_cycle"] > 0
                assert (figures["nodes_per_cycle"] == 1) == (name == "vanilla")
                assert all(0 <= rate <= 1 for rate in figures["acceptance_by_depth"])
                assert len(figures["acceptance_by_depth"]) <= 3
            if temperature == "0.0":
                assert tasks["all"]["prompts_with_equal_tokens"] == 3
        assert found["vanilla"]["all"]["pooled_mean_accepted_tokens"] == 1.0
    assert max(tasks["all"]["pooled_mean_accepted_tokens"] for tasks in report["temperatures"]["0.0"].values()) > 1
