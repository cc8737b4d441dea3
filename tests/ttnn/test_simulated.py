"""backend=ttnn on TT-Lang's functional simulator, which changes torch while it is imported: in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "tests" / "ttnn" / "simulated_cases.py").read_text(encoding="utf-8")
CASES = [
    node.name.removeprefix("case_")
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What every case said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ttnn.simulated_cases"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    return {line["case"]: line for line in lines}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, outcomes: dict[str, dict[str, Any]]) -> None:
    assert not outcomes[case]["error"], outcomes[case]["error"]
