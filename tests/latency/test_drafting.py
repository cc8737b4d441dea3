"""What drafters would give on a GPU: the formula by hand, and the page that shows the command's output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.app import main
from spec_sdk.latency.drafting import Device, Drafting, GPUTable, measured_drafters

ROOT = Path(__file__).parents[2]
REPORT = "benchmarks/results/drafters.json"
PAGE = ROOT / "docs" / "draft_heads_on_gpus.md"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_page_shows_what_the_command_prints(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a new report of benchmarks.drafters: put the command's output into the page, and read the text again."""
    (shown,) = re.findall(r"```\n\$ (.*?)\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    command, table = shown
    assert command == f"python -m spec_sdk task=estimate task.drafters={REPORT}"
    monkeypatch.chdir(ROOT)
    status, out, _ = cli(*command.split()[3:], f"output_dir={tmp_path}")
    assert status == 0
    printed = [line.rstrip() for line in out.rstrip().splitlines()]
    assert printed == [line.rstrip() for line in table.splitlines()]
    kept = json.loads((tmp_path / "drafters_estimate.json").read_text())
    assert [len(kept["drafters"]), set(kept["plain_tokens_per_second"])] == [len(printed) - 4, {"A100", "H100"}]


def test_a_cycle_is_its_levels_the_hosts_work_and_a_pass_of_the_target() -> None:
    table = GPUTable(
        {
            "title": "two",
            "bytes_per_parameter": 2,
            "target": 1e9,
            "share_of_bandwidth": 0.5,
            "pass_us": 100,
            "devices": {"X": {"bandwidth": 1e12, "multiplications": 1e14}},
            "drafters": {"eagle_tree": 1e8},
            "assumed": [],
        }
    )
    (device,) = table.devices
    assert device == Device("X", 1e12, 1e14)
    speed = table.speed(device, Drafting("eagle_tree", 0.0, 3.0, 8, 4, 1e8, 1e-3))
    # 4 ms of weights and 0.1 ms; four times 0.4 and 0.1 ms; 1 ms
    assert speed.plain == pytest.approx(1 / 4.1e-3)
    assert speed.drafted == pytest.approx(3.0 / (4.1e-3 + 4 * 0.5e-3 + 1e-3))
    assert speed.speedup == pytest.approx(speed.drafted / speed.plain)
    # from 200 rows on, multiplying takes longer than reading
    wide = table.speed(device, Drafting("eagle_tree", 0.0, 3.0, 400, 0, 0.0, 0.0))
    assert wide.drafted == pytest.approx(3.0 / (8e-3 + 1e-4))


def test_what_a_report_says(tmp_path: Path) -> None:
    def figures(depths: int) -> dict[str, Any]:
        values = {"pooled_mean_accepted_tokens": 2.5, "nodes_per_cycle": 9.0, "draft_ms_per_cycle": 2.0}
        return {"all": {**values, "acceptance_by_depth": [0.5] * depths}, "qa": {}}

    drafters = {"vanilla": figures(0), "suffix x=1": figures(7), "eagle_tree a=b": figures(5), "new": figures(1)}
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"temperatures": {"0.8": drafters}}))
    table = GPUTable.shipped()
    (suffix, eagle), unknown = measured_drafters(path, table, "task.drafters")
    assert unknown == ["new"]
    assert suffix == Drafting("suffix", 0.8, 2.5, 9.0, 0, 0, 2e-3)
    # a head drafts on the GPU, whose time the table has
    assert eagle == Drafting("eagle_tree", 0.8, 2.5, 9.0, 5, table.parameters["eagle_tree"], 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("{}", "is no report of python -m benchmarks.drafters"), ("[", "is no report")],
)
def test_another_file_is_refused(
    text: str | None, message: str, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    status, _, error = cli("task=estimate", f"task.drafters={path}", f"output_dir={tmp_path / 'out'}")
    assert status == 2 and f"task.drafters: {path}" in error and message in error
