"""A skip for want of something fails, one for the machine's sake does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.skips import CUDA

ROOT = Path(__file__).parents[1]
TESTS = f'''
import pytest

@pytest.mark.skipif(True, reason="{CUDA}")
def test_on_a_gpu(): ...

@pytest.mark.skipif(True, reason="prompts.jsonl is not there")
def test_with_a_file(): ...

def test_with_a_package():
    pytest.importorskip("no_such_package")
'''


def test_what_is_lacking_fails(tmp_path: Path) -> None:
    """In a test, in a mark, and in a whole module."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    options = ["-rfE", "-p", "tests.support.skips", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 skipped, 2 errors" in run.stdout, run.stdout
    for reason in ("prompts.jsonl is not there", "no_such_package", "no_such_module"):
        assert "skipped, and not for the machine's sake" in run.stdout and reason in run.stdout
