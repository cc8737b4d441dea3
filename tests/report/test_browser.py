"""The page in a real browser, where there is one: wide and narrow, light and dark, no error, nothing cut off."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.run_report.finding import read_runs
from spec_sdk.run_report.groups import grouped
from spec_sdk.run_report.page import html_page, parts_of
from tests.support.run_records import write_bench, write_generate

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: chromium")
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
DARK = "--blink-settings=preferredColorScheme=0"

LOOK = """
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("load", () => {
  const luminance = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const page = getComputedStyle(document.body).backgroundColor;
  const least = (selector, property) => Math.min(...[...document.querySelectorAll(selector)]
    .map((found) => contrast(getComputedStyle(found)[property], page)));
  const outside = [...document.querySelectorAll("body *")].filter((found) => !found.closest(".scroll, svg")
    && found.getBoundingClientRect().right > innerWidth + 0.5).map((found) => found.tagName + " " + found.className);
  const table = document.querySelector("table");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[2].textContent);
  const button = table.tHead.rows[0].cells[2].querySelector("button");
  button.click();
  const falling = column();
  button.click();
  parent.document.documentElement.dataset.found = JSON.stringify({
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    outside, errors, page, falling,
    rising: column(),
    text: Math.min(least("p, td, th, figcaption, dd, dt, h2, .legend li", "color"), least("svg text", "fill")),
    marks: Math.min(least(".mark:not(.hollow), .bar:not(.other)", "fill"), least(".line", "stroke")),
    smallest: Math.min(...[...document.querySelectorAll(".picture:not(.scroll) svg text")]
      .map((found) => found.getBoundingClientRect().height)),
  });
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("runs")
    write_bench(place / "bench")
    write_generate(place / "sky", "pipeline=alspec", "prompt=Why is the sky blue?", hits=True)
    runs, _ = read_runs([str(place / "bench"), str(place / "sky")])
    return html_page("A report", parts_of(grouped(runs, "vanilla"), 24), ["a job: it failed"])


def shown(place: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What a browser makes of the page, as text, and what it says of it."""
    file = place / "page.html"
    file.write_text(text, encoding="utf-8")
    assert BROWSER is not None
    flags = ("--headless", "--no-sandbox", "--disable-gpu", *OFFLINE, f"--user-data-dir={place / 'profile'}")
    command = [BROWSER, *flags, *options, "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_it_is_readable(page: str, tmp_path: Path, width: int, dark: bool) -> None:
    # the page lets no other script run, so the one that looks at it takes the policy's place
    looked_at = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', lambda _: f"<script>{LOOK}</script>", page)
    assert LOOK in looked_at
    # a window has a least width
    frame = f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{escape(looked_at)}"></iframe>'
    around = f'<!DOCTYPE html><html style="color-scheme: light dark"><body>{frame}</body></html>'
    result = shown(tmp_path, around, *[DARK] * dark)
    [text] = re.findall(r'data-found="([^"]*)"', result.stdout)
    found: dict[str, Any] = json.loads(unescape(text))
    assert found["width"] == width and found["errors"] == []
    assert found["overflow"] <= 0 and found["outside"] == []
    assert (found["page"] == "rgb(255, 255, 255)") != dark
    # WCAG 2.2: text 1.4.3, graphics 1.4.11
    assert found["text"] >= 4.5 and found["marks"] >= 3.0
    assert found["smallest"] >= 9
    numbers = [float(cell) for cell in found["falling"]]
    assert numbers == sorted(numbers, reverse=True)
    assert [float(cell) for cell in found["rising"]] == sorted(numbers)


def test_its_own_policy_lets_its_script_and_style_through(page: str, tmp_path: Path) -> None:
    result = shown(tmp_path, page, "--enable-logging=stderr", "--v=0")
    assert "CONSOLE" not in result.stderr
    assert '<button type="button">candidate</button>' in result.stdout
    broken = page.replace("</script>", ";</script>")
    assert "CONSOLE" in shown(tmp_path, broken, "--enable-logging=stderr", "--v=0").stderr
