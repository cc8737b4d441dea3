"""The documentation site: ``make docs`` builds it from these pages and the docstrings, without a network."""

from __future__ import annotations

import posixpath
import re
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "spec-sdk"
release = metadata.version("spec-sdk")
copyright = "the authors of spec-sdk"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["example_plugin", "serving_plugin", "_build"]
html_theme = "furo"
html_title = f"spec-sdk {release}"
html_show_sphinx = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def _outside(page: str, target: str) -> bool:
    """Whether a page's relative link leaves the pages: source code, results, the example package."""
    if re.match(r"[a-z]+:", target):
        return False
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path.startswith(("../", "example_plugin", "serving_plugin"))


def _name_what_is_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to files of the repository become their names: on the site there is nothing for them to lead to."""

    def named(match: re.Match[str]) -> str:
        return match[1] if _outside(page, match[2]) else match[0]

    source[0] = LINK.sub(named, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _name_what_is_outside)
