"""EasySpec's tables on processes: every row is there, and drafting changes no token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import easyspec_ranks
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.mark.full
def test_tables_on_one_process_and_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3)
    prompts = [{"turns": [f"a b {i} c d"], "task": "one"} for i in range(2)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    output = tmp_path / "tables.json"
    files = [f"--prompts={tmp_path / 'prompts.jsonl'}", f"--output={output}", f"model.target={tmp_path / 'model'}"]
    reports = []
    for processes in (["1"], ["2"]):
        argv = ["easyspec_ranks", *files, "--new-tokens=6", "--width=2", "--size=2", "--processes", *processes]
        monkeypatch.setattr("sys.argv", argv)
        assert easyspec_ranks.main() == 0
        reports.append(json.loads(output.read_text()))
    sizes = reports[1]["sizes"]
    assert sizes["1"] == reports[0]["sizes"]["1"]
    drafted = [("+sd", 1), ("+sd", 2), ("+tree", 1), ("+tree", 2), ("EasySpec", 1), ("EasySpec", 2)]
    assert [(row["method"], row["draft_ranks"]) for row in sizes["2"]["rows"]] == [("TP", 0), *drafted]
    assert [row["method"] for row in sizes["1"]["rows"]] == ["vanilla", "+sd", "+tree", "EasySpec"]
    for row in (row for size in sizes.values() for row in size["rows"]):
        assert row["same_tokens"] and 0 < row["v"] <= row["total"]
        assert set(row["tasks"]) == {"one"} and row["tasks"]["one"]["total"] == row["total"]
        assert row["tokens_per_second"] > 0 and row["variance"] >= 0
        assert row["d"] > 0 or not row["draft_ranks"]
    # two rows that differ in where the draft model is alone accept the same
    rates = [row["alpha"] for row in sizes["2"]["rows"]]
    assert rates[1] == rates[2] and rates[3] == rates[4] and rates[5] == rates[6]
    said = capsys.readouterr().out
    assert "Table 1" in said and "EasySpec" in said
