"""Every Python example of README, guides and the notebook runs as it is written, on the default model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks
from tests.support.registered_plugins import no_plugin_stays as no_plugin_stays
from tests.support.text_checkpoints import write_text_checkpoint
from tests.support.tiny_whisper import sound, write_wav, write_whisper

GUIDE = DOCS / "python_api.md"
EXAMPLES = {
    page: found
    for page in PAGES
    if (found := [block for block in blocks(page) if block.language == "python" and not block.mark])
}


def run(examples: list[Block], page: Path) -> dict[str, Any]:
    """Execute them one after the other as one program; errors name the page and its line."""
    names: dict[str, Any] = {"__name__": "example"}
    for block in examples:
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True), names)
    return names


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugin_stays: None) -> None:
    """A directory that has what examples name: a directory goes before a hub id."""
    write_text_checkpoint(tmp_path / "my-model")
    write_whisper(tmp_path / "openai" / "whisper-tiny", max_target_positions=448)
    write_wav(tmp_path / "speech.wav", sound(0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program"])


def test_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    examples = EXAMPLES[GUIDE]
    assert len(examples) >= 10
    [program] = [block for block in examples if "@hydra.main" in block.text]
    names = run([block for block in examples if block is not program], GUIDE)
    out = capsys.readouterr().out
    assert "sampling.top_p: 0.0 must be above 0 and at most 1 (off)" in out
    assert "3" not in names["short"].text
    # Hydra looks for the file that its program stands in
    Path("program.py").write_text(program.text)
    done = subprocess.run([sys.executable, "program.py", "+pipeline=vanilla"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    path = DOCS / "python_api.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    run([Block(path, 1, "python", "".join(cell["source"])) for cell in cells], path)
    said = capsys.readouterr().out
    assert "sampling.temperature: -1.0 must be 0 (greedy) or more" in said
    [counted] = [line for line in said.splitlines() if line.startswith("'1")]
    assert counted.endswith(" stop") and "4" not in counted


@pytest.mark.parametrize("page", sorted({*EXAMPLES} - {GUIDE}), ids=lambda page: str(page.relative_to(ROOT)))
def test_other_pages(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(EXAMPLES[page], page)
    prints = any("print(" in block.text for block in EXAMPLES[page])
    assert bool(capsys.readouterr().out.strip()) == prints


def test_the_readme_has_examples() -> None:
    assert {ROOT / "README.md", GUIDE} <= EXAMPLES.keys()
