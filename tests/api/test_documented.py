"""Every example of the guide, the notebook and the README runs as it is written, on the default model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.text_checkpoints import write_text_checkpoint

ROOT = Path(__file__).parents[2]


def blocks(path: Path) -> list[tuple[int, str]]:
    """The line and the code of every python block of a Markdown page."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def run(examples: list[tuple[int, str]], path: Path) -> dict[str, Any]:
    """Execute them one after the other as one program; errors name the page and its line."""
    names: dict[str, Any] = {"__name__": "example"}
    for line, code in examples:
        exec(compile("\n" * line + code, str(path), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_checkpoint(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program"])


def test_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "python_api.md"
    examples = blocks(path)
    assert len(examples) >= 10
    [program] = [code for _, code in examples if "@hydra.main" in code]
    names = run([example for example in examples if example[1] != program], path)
    out = capsys.readouterr().out
    assert "sampling.top_p: 0.0 must be above 0 and at most 1 (off)" in out
    assert "3" not in names["short"].text
    # Hydra looks for the file that its program stands in
    Path("program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py", "+pipeline=vanilla"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert len(path.read_text(encoding="utf-8").split()) <= 1200


def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "python_api.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    run([(0, "".join(cell["source"])) for cell in cells], path)
    assert "sampling.temperature: -1.0 must be 0 (greedy) or more" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["README.md", "docs/cpu.md", "docs/engine.md"])
def test_other_pages(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / name
    examples = blocks(path)
    assert examples
    run(examples, path)
    assert capsys.readouterr().out.strip()
