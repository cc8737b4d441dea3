"""What benchmarks of many cases share: their report under way, their options, their table, rivals and aims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.support.live_table import LiveTable
from benchmarks.support.rivals import COLUMNS, faster_aim, rival_rows
from spec_sdk.bench.aims import aim, print_aims
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path
from spec_sdk.bench.machine import hardware_name, slug

CPU = torch.device("cpu")


def case(label: str, ours: float, theirs: float) -> dict[str, object]:
    return {
        "label": label,
        "rivals": {"ours": {"seconds": ours, "peak_bytes": 1 << 20}, "theirs": {"seconds": theirs, "peak_bytes": 0}},
    }


def test_a_report_is_written_case_by_case_until_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    path = tmp_path / "new" / "report.json"
    report = CaseReport(path, "some", CPU, 10.0, lambda: now, quick=True)
    for number in report.in_time([1, 2, 3], lambda number: f"case {number}"):
        report.add({"number": number})
        kept = json.loads(path.read_text())
        assert kept["cases"] == [{"number": i + 1} for i in range(number)] and kept["aims"] == []
        now += 6.0
    assert "left out: case 3: no time left of 10 s" in capsys.readouterr().out
    report.finish([aim("it is fast", True, "1.5"), aim("on a GPU", None, "none here"), aim("small", False, "9 MiB")])
    kept = json.loads(path.read_text())
    assert (kept["benchmark"], kept["quick"], kept["device"]) == ("some", True, "cpu")
    assert kept["left_out"] == ["case 3: no time left of 10 s"] and len(kept["load_after"]) == 3
    assert [each["result"] for each in kept["aims"]] == ["met", "not measured here", "missed"]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"written: {path}" and told[1] == "met                it is fast: 1.5" and len(told) == 4


def test_options_are_those_whose_default_is_given(tmp_path: Path) -> None:
    parser = device_parser("One line.\n\nMore.", seconds=5.0, rounds=3)
    assert parser.description == "One line."
    options = vars(parser.parse_args(["--device=cpu"]))
    assert options == {"device": "cpu", "quick": False, "output": None, "seconds": 5.0, "rounds": 3}
    assert set(vars(device_parser("", each=1.0, repeats=2).parse_args([]))) >= {"each", "repeats"}
    machine = slug(hardware_name(CPU))
    assert output_path(None, tmp_path, "some", CPU, "") == tmp_path / f"some-{machine}.json"
    assert output_path(None, tmp_path, "some", CPU, "quick") == tmp_path / f"some-{machine}-quick.json"
    assert output_path(Path("x.json"), tmp_path, "some", CPU, "quick") == Path("x.json")


def test_rows_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    table = LiveTable({"ratio": 7, "rival": -6, "us": 3, "step": -1})
    table.row("1.50", "ours", "12345", "γ=5")
    assert capsys.readouterr().out.splitlines() == ["  ratio  rival    us  step", "   1.50  ours    12345  γ=5"]
    with pytest.raises(ValueError, match="argument"):
        table.row("1.50")


def test_rivals_are_compared_case_by_case() -> None:
    cases = [case("a", 1e-6, 2e-6), case("b", 3e-6, 4e-6)]
    assert rival_rows(cases[0], "theirs", "a") == [
        ["2.00", "ours", "1", "1.00", "a"],
        ["1.00", "theirs", "2", "0.00", "a"],
    ]
    assert len(rival_rows(cases[0], "theirs", "a")[0]) == len(COLUMNS)

    def judged(*cases: dict[str, object]) -> tuple[str, str]:
        found = faster_aim("ours", "theirs", cases, lambda case: str(case["label"]), "cpu")
        assert found["aim"] == "cpu: ours is faster than theirs"
        return found["result"], found["figure"]

    assert judged(*cases) == ("met", "faster in 2 of 2, median 0.62 of its time, worst 0.75 at b")
    assert judged(*cases, case("c", 1.0, 1.0))[0] == "missed"
    with pytest.raises(ValueError, match="arg"):
        judged()


def test_aims_are_printed_result_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_aims([aim("x", None, "why")])
    assert capsys.readouterr().out == "not measured here  x: why\n"
