"""``make docs``: the site is built from all pages and the docstrings, without a warning and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import DOCS

NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody answers at: whatever is fetched fails."""


def test_it_is_built(tmp_path: Path) -> None:
    without_network = {name: NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        env={**os.environ, **without_network},
    )
    assert built.returncode == 0, built.stderr[-3000:]
    library = (tmp_path / "site" / "api" / "library.html").read_text(encoding="utf-8")
    assert 'id="spec_sdk.api.engine.Engine.generate"' in library
    # a link to source code becomes its name, one to a page stays
    page = (tmp_path / "site" / "architecture.html").read_text(encoding="utf-8")
    assert 'href="policies.html"' in page and "scheduler.py" not in page
