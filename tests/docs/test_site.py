"""``make docs``: the site is built from all pages and the docstrings, without a warning and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS

NOWHERE = "http://127.0.0.1:9"
"""A proxy that nobody answers at: whatever is fetched fails."""


def build(builder: str, directory: Path) -> Path:
    """The documentation by one of Sphinx's builders; a warning is an error."""
    without_network = {name: NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", builder]
    built = subprocess.run(
        [*command, "-d", str(directory / "trees"), str(DOCS), str(directory / "site")],
        capture_output=True,
        text=True,
        env={**os.environ, **without_network},
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return directory / "site"


def test_no_page_and_no_docstring_has_a_warning(tmp_path: Path) -> None:
    build("dummy", tmp_path)


@pytest.mark.full
def test_it_is_built(tmp_path: Path) -> None:
    site = build("html", tmp_path)
    library = (site / "api" / "library.html").read_text(encoding="utf-8")
    assert 'id="spec_sdk.api.engine.Engine.generate"' in library
    # a link to source code becomes its name, one to a page stays
    page = (site / "architecture.html").read_text(encoding="utf-8")
    assert 'href="policies.html"' in page and "scheduler.py" not in page
