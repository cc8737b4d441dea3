"""Pages are short, and their links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, GENERATED, PAGES, ROOT, blocks

LONGEST = {ROOT / "README.md": 1000}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def anchors(page: Path) -> set[str]:
    """As GitHub and MyST make them: lower case, no punctuation, hyphens for spaces."""
    lines = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if re.match(r"#{1,4} ", line)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted({*PAGES} - GENERATED), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    assert words(page) <= LONGEST.get(page, 1250), "split it where two readers are meant"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{target} is not there"
        assert path.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(path), f"{target} has no section {anchor}"


def test_broken_links_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A *page*\n\n[a](page.md#a-page) `[b](c.md)`\n\n```\n# not a title\n```\n")
    assert anchors(page) == {"a-page"}
    assert LINK.findall(CODE.sub("", page.read_text())) == [("page.md", "a-page")]


def test_every_page_is_on_the_site() -> None:
    start = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", start, flags=re.MULTILINE | re.DOTALL)
    listed = {line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")}
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert listed == {name for name in there if not name.startswith(("example_plugin/", "serving_plugin/", "_build/"))}


def test_data_in_examples_can_be_read() -> None:
    readers = {"yaml": yaml.safe_load, "toml": tomllib.loads}
    found = [block for page in PAGES for block in blocks(page) if block.language in readers]
    assert len(found) >= 4
    for block in found:
        assert readers[block.language](block.text), block


def test_what_is_quoted_is_in_its_file() -> None:
    """The lines of the example, in their order, with others of the file (docstrings, comments) between them."""
    found = [block for page in PAGES for block in blocks(page) if block.mark == "quoted from"]
    assert len(found) >= 2
    for block in found:
        source = iter((ROOT / block.about).read_text(encoding="utf-8").splitlines())
        for line in block.text.splitlines():
            assert not line.strip() or line in source, f"{block.page}: {block.about} has no such line now: {line}"
