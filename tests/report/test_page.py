"""The page and the Markdown: whole, self-contained, and nothing of a record is taken for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from spec_sdk.run_report.finding import read_runs
from spec_sdk.run_report.groups import grouped
from spec_sdk.run_report.page import html_page, markdown_page, parts_of
from spec_sdk.run_report.timeline import trace_of
from tests.support.run_records import bench_records, write_bench, write_generate

EVIL = "<script>alert('x')</script>&\"|*`"
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Elements with their attributes, and whether all that was opened was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("runs")
    records = bench_records()
    for record in records:
        if record["record"] == "answer" and record["task"] == "qa":
            record["task"] = EVIL
    records.append({"record": "failure", "candidate": "suffix", "reason": "error", "error": EVIL})
    write_bench(place / "bench", [{**records[0], "weights": EVIL, "command": ["python", EVIL]}, *records[1:]])
    write_generate(place / "sky", "pipeline=alspec", f"prompt={EVIL}", hits=True)
    return [str(place / "bench"), str(place / "sky")]


@pytest.fixture(scope="module")
def pages(directories: list[str]) -> tuple[str, str]:
    parts = parts_of(grouped(read_runs(directories)[0], "vanilla"), 24)
    return html_page(f"A title {EVIL}", parts, [f"job {EVIL}"]), markdown_page(
        f"A title {EVIL}", parts, [f"job {EVIL}"]
    )


def test_nothing_of_a_record_is_markup(pages: tuple[str, str]) -> None:
    page = Page(pages[0])
    assert [tag for tag, _ in page.found].count("script") == 1
    assert "alert('x')" not in pages[0].replace("&#39;", "'").replace("&lt;script&gt;alert('x')", "")
    # commands stand in blocks of code, where nothing is markup
    outside_code = re.sub(r"^    .*$", "", pages[1], flags=re.MULTILINE)
    assert "script" in outside_code and not re.search(r"(?<!\\)<", outside_code)


def test_it_loads_nothing_and_lets_no_other_script_run(pages: tuple[str, str]) -> None:
    page = Page(pages[0])
    for tag, attributes in page.found:
        assert not {"src", "style", "onclick", "onload", "srcset"} & attributes.keys(), tag
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert (attributes.get("href") or "#").startswith("#")
    [policy] = [a["content"] for tag, a in page.found if a.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", pages[0], flags=re.DOTALL)
        named = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{named}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")


def test_every_picture_has_words_and_a_table_beside_it(pages: tuple[str, str]) -> None:
    figures = re.findall(r"<figure.*?</figure>", pages[0], flags=re.DOTALL)
    pictures = [figure for figure in figures if 'role="img"' in figure]
    assert len(pictures) >= 15
    for figure in pictures:
        assert re.search(r'<svg[^>]*role="img"[^>]*><title>[^<]+</title><desc>[^<]+</desc>', figure)
        assert re.search(r"<caption>[^<]+</caption>", figure) and '<span class="basis">' in figure
        assert len(re.findall("<tr>", figure)) > 1
    assert "Content" not in figures[0]


def test_commands_machine_and_versions_are_on_it(pages: tuple[str, str]) -> None:
    for text in pages:
        assert "2.13.0+cpu" in text and "Linux-6.18" in text
    assert "    python -m spec_sdk pipeline=alspec" in pages[1]
    assert "<code>python -m spec_sdk pipeline=alspec" in pages[0]


def test_markdown_tables_have_as_many_cells_as_columns(pages: tuple[str, str]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", pages[1], flags=re.MULTILINE)
    assert len(tables) >= 15
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_a_trace_has_every_stage_in_its_order(directories: list[str]) -> None:
    [bench, sky] = read_runs(directories)[0]
    of_bench = trace_of(bench)
    assert of_bench is not None
    assert {event["args"]["name"] for event in of_bench["traceEvents"] if event["name"] == "process_name"} == {
        f"{timeline.candidate}: process 0" for timeline in bench.timelines
    }
    trace = trace_of(sky)
    assert trace is not None
    json.dumps(trace, allow_nan=False)
    events = trace["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "alspec: process 0",
        "vanilla: process 0",
    ]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} == {"prefill", "draft", "verify", "recover"}
    for pid in (1, 2):
        mine = [event for event in slices if event["pid"] == pid]
        for before, after in zip(mine, mine[1:], strict=False):
            assert after["ts"] >= before["ts"] + before["dur"] - 0.01
    first = next(event for event in slices if event["name"] == "verify")
    assert first["dur"] == pytest.approx(1e6 * 0.7 * 0.036, abs=1)
    assert first["args"]["drafted"] == 4
    assert trace["otherData"]["command"].startswith("python -m spec_sdk pipeline=alspec")
