"""``--output`` of scripts is looked at before they measure."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from spec_sdk.bench.device_scripts import device_parser
from spec_sdk.bench.output_option import add_output, writable_file
from spec_sdk.bench.scripts import script_parser
from spec_sdk.errors import UserError

ROOT = Path(__file__).parents[2]


def parser_of(kind: str) -> argparse.ArgumentParser:
    if kind == "pipeline":
        return script_parser("", output=Path("x.json"))
    if kind == "device":
        return device_parser("")
    own = argparse.ArgumentParser()
    add_output(own)
    return own


@pytest.mark.parametrize("kind", ["pipeline", "device", "own"])
def test_what_cannot_be_written_ends_a_script_with_one_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    parser = parser_of(kind)
    for name, told in [
        ("/proc/x/y.json", "/proc cannot be written to"),
        (str(tmp_path / "file" / "x.json"), f"{tmp_path / 'file'} is a file, not a directory"),
        (str(tmp_path), f"{tmp_path} is a directory; name a file"),
        ("/dev/null", "/dev/null is no file; name a file"),
    ]:
        with pytest.raises(SystemExit) as ended:
            parser.parse_intermixed_args(["--output", name])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.startswith(f"error: --output: {told}") and said.count("\n") == 1
    new = tmp_path / "new" / "x.json"
    assert parser.parse_args(["--output", str(new)]).output == new and not new.parent.exists()


def test_defaults_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert script_parser("", output=tmp_path / "x.json").parse_args([]).output == tmp_path / "x.json"
    with pytest.raises(SystemExit):
        script_parser("", output=tmp_path / "file" / "x.json").parse_args([])
    assert parser_of("own").parse_args([]).output is None


def test_an_earlier_report_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert writable_file(str(tmp_path / "x.json")) == tmp_path / "x.json"
    with pytest.raises(UserError, match=r"^--output: .* is too long$"):
        writable_file("a" * 5000)


def test_every_script_takes_it_from_here() -> None:
    own = [path.name for path in (ROOT / "benchmarks").glob("*.py") if 'add_argument("--output"' in path.read_text()]
    assert own == []


@pytest.mark.parametrize("script", ["easyspec table2", "speculative_decode --quick"])
def test_a_script_says_it_before_its_work(script: str) -> None:
    name, *arguments = script.split()
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--output", "/proc/x/y.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --output: /proc cannot be written to") and done.stderr.count("\n") == 1
