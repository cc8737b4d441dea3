"""What drafters would give on a GPU: the formula by hand, and the page that shows the command's output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.app import main
from spec_sdk.bench.reading import read_bench
from spec_sdk.latency.drafting import Device, Drafting, GPUTable, measured_drafters
from tests.support.text_checkpoints import write_text_checkpoint

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
    """The kept report: put the command's output into the page, and read the text again."""
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
    def figures(depths: int, policy: str = "fixed") -> dict[str, Any]:
        values = {"pooled_mean_accepted_tokens": 2.5, "nodes_per_cycle": 9.0, "draft_ms_per_cycle": 2.0}
        return {"policy": policy, "tasks": {"all": {**values, "acceptance_by_depth": [0.5] * depths}, "qa": {}}}

    drafters = {
        "vanilla": figures(0),
        "suffix x=1": figures(7, "break_even"),
        "eagle_tree a=b": figures(5),
        # pauses where drafting does not pay here, which says nothing of a GPU
        "eagle_tree": figures(5, "break_even"),
        "new": figures(1),
    }
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"temperatures": {"0.8": drafters}}))
    table = GPUTable.shipped()
    (suffix, eagle), unknown = measured_drafters(path, table, "task.drafters")
    assert unknown == ["new"]
    assert suffix == Drafting("suffix", 0.8, 2.5, 9.0, 0, 0, 2e-3)
    # a head drafts on the GPU, whose time the table has
    assert eagle == Drafting("eagle_tree", 0.8, 2.5, 9.0, 5, table.parameters["eagle_tree"], 0.0)


def test_what_a_run_of_bench_says(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """A drafter without a model, and one whose policy is not fixed, on a tiny model; vanilla is no drafter."""
    write_text_checkpoint(tmp_path / "model")
    asked = ["prompt_file=spec_bench_sample", "prompt_limit=2", "max_new_tokens=12", "ignore_eos=true"]
    chosen = (
        '["prompt_lookup policy.depth=3", "sd_chain policy=heuristic", "sd_chain policy.depth=2", "specinfer_tree"]'
    )
    place = tmp_path / "bench"
    command = [f"model.target={tmp_path / 'model'}", "model.draft=cut", "model.draft_layers=[0]", f"output_dir={place}"]
    status, _, error = cli("task=bench", f"task.pipelines={chosen}", "task.temperatures=[0,1]", *asked, *command)
    assert status == 0, error
    table = GPUTable.shipped()
    found, unknown = measured_drafters(place, table, "task.drafters")
    assert unknown == ["specinfer_tree"]
    assert [(one.name, one.temperature) for one in found] == [
        (name, temperature) for temperature in (0.0, 1.0) for name in ("prompt_lookup", "sd_chain")
    ]
    run = read_bench(place)
    for one in found:
        candidate = {"prompt_lookup": "prompt_lookup policy.depth=3", "sd_chain": "sd_chain policy.depth=2"}[one.name]
        answers = [a for a in run.answers if (a.candidate, a.temperature) == (candidate, one.temperature)]
        cycles = sum(a.steps or 0 for a in answers)
        assert one.mean_accepted_tokens == pytest.approx(sum(a.new_tokens for a in answers) / cycles)
        assert one.nodes == pytest.approx(sum(a.nodes or 0 for a in answers) / cycles)
        assert (one.levels, one.host_s > 0) == ((2, False) if one.name == "sd_chain" else (0, True))
    status, out, _ = cli("task=estimate", f"task.drafters={place}", f"output_dir={tmp_path / 'out'}")
    assert status == 0 and len([line for line in out.splitlines() if "T = " in line]) == 4
    status, _, error = cli("task=estimate", f"task.drafters={tmp_path / 'model'}", f"output_dir={tmp_path / 'out'}")
    assert status == 2 and error.count("error: ") == 1 and f"task.drafters: {tmp_path / 'model'}" in error


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), ("{}", "is no directory of task=bench, and no report"), ("[", "no report of drafters")],
)
def test_another_file_is_refused(
    text: str | None, message: str, cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    status, _, error = cli("task=estimate", f"task.drafters={path}", f"output_dir={tmp_path / 'out'}")
    assert status == 2 and f"task.drafters: {path}" in error and message in error
