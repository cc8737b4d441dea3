"""The page at ``/`` in a real browser: what it shows is what the server streams, and it holds what a page must."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.contracts.constraint import Matcher
from spec_sdk.serve.asking import asked_of
from spec_sdk.serve.options import ServeConfig
from spec_sdk.serve.speculation import told
from tests.serve.test_limits import begun, left
from tests.support.browser import MISSING, browser, look_like, until
from tests.support.serving import Served, post, served

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"needs a browser: {MISSING}")

LOOK = """
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
const contrast = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = numbers(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
};
const read = "h1, h2, small, p, dt, dd, label, li, #answer span, summary, button:enabled";
const texts = [...document.querySelectorAll(read)].filter((found) => found.textContent.trim() && found.offsetParent);
const drawn = [...document.querySelectorAll("#tree .node text")];
const least = (values) => Math.min(...values);
return {
  overflow: document.documentElement.scrollWidth - innerWidth,
  outside: [...document.querySelectorAll("body *")].filter((found) => !found.closest(".scroll, svg, .text")
    && found.getBoundingClientRect().right > innerWidth + 0.5).map((found) => found.tagName + " " + found.id),
  text: least(texts.map((found) => contrast(numbers(getComputedStyle(found).color), behind(found)))),
  nodes: least(drawn.map((found) => contrast(
    numbers(getComputedStyle(found).fill), numbers(getComputedStyle(found.parentElement.querySelector("rect")).fill)))),
  smallest: least(texts.map((found) => parseFloat(getComputedStyle(found).fontSize))),
  page: getComputedStyle(document.body).backgroundColor,
  unnamed: [...document.querySelectorAll("input, textarea, button, [tabindex='0']")].filter(
    (found) => found.offsetParent && !(found.labels?.length || found.ariaLabel || found.textContent.trim()
      || found.getAttribute("aria-labelledby"))).map((found) => found.outerHTML.slice(0, 80)),
};
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(autouse=True)
def quiet(driver: Any) -> Iterator[None]:
    """The console has nothing to say: no error, and nothing that the page's own policy kept out."""
    yield
    said = [entry for entry in driver.get_log("browser") if "Failed to load resource" not in entry["message"]]
    assert said == []


def at(driver: Any, name: str) -> Any:
    return driver.find_element("id", name)


def opened(driver: Any, running: Served, width: int = 1300, dark: bool = False) -> None:
    look_like(driver, width, dark)
    driver.get(f"{running.url}/")
    until(lambda: "easyspec_paper (exact)" in at(driver, "about").text or at(driver, "error").text)


def asked(driver: Any, **values: object) -> None:
    """Fill in the form and have it answered."""
    for name, value in values.items():
        driver.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))
    at(driver, "run").click()


def ended(driver: Any) -> str:
    """The state that a run ends in."""
    until(lambda: at(driver, "run").is_enabled() and not at(driver, "stop-run").is_enabled())
    return str(at(driver, "state").text)


def steps_at(running: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What the stream tells of the same request."""
    asked = {**body, "stream": True, "stream_options": {"include_speculation": True}}
    status, reply = post(running.port, "/v1/chat/completions", json.dumps(asked).encode())
    assert status == 200
    chunks = [json.loads(line[6:]) for line in reply.decode().splitlines() if line.startswith("data: {")]
    return [
        step for c in chunks for choice in c["choices"] for step in choice.get("speculation", {"steps": []})["steps"]
    ]


def test_it_shows_what_the_stream_tells(driver: Any, server: Served, engine: Engine) -> None:
    opened(driver, server)
    asked(driver, prompt="Why is the sky blue?", max_tokens=20)
    assert ended(driver) == "ended at its limit of tokens"
    body = {"messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 20}
    steps = steps_at(server, body)
    [answer] = engine.generate([body["messages"]], max_new_tokens=20)
    assert at(driver, "answer").get_property("textContent") == answer.text
    # every token in the colour of its source
    spans = driver.find_elements("css selector", "#answer span")
    sources = [(t["text"], t["source"]) for step in steps for t in step["tokens"]]
    looks = [str(span.get_attribute("class")).split()[0] for span in spans]
    assert looks == [source for _, source in sources]
    assert "drafted" in looks and len(set(looks)) > 1
    counted = sum(int(number.text) for number in driver.find_elements("css selector", "#legend b"))
    assert counted == len(sources) == 20
    assert at(driver, "counts").text == f"20 / {len(steps)}"
    assert at(driver, "mat").text == f"{20 / len(steps):.2f}"
    assert at(driver, "acceptance").text == f"{100 * answer.metrics['acceptance_rate']:.0f} %"
    # every step has its tree: by the slider's keys, from the last to the first
    from selenium.webdriver.common.keys import Keys

    slider = at(driver, "slider")
    for number in range(len(steps), 0, -1):
        step = steps[number - 1]
        assert at(driver, "step-number").text == f"{number} of {len(steps)}"
        nodes = driver.find_elements("css selector", "#tree .node")
        own = [token for token in step["tokens"] if token["source"] != "drafted"]
        assert len(nodes) == len(step["nodes"]) + len(own)
        kept = driver.find_elements("css selector", "#tree .node.kept")
        assert len(kept) == len(step["path"]) - 1
        levels = [int(node.get_attribute("aria-level")) for node in nodes]
        parents = [node["parent"] for node in step["nodes"]] + [step["path"][-1]] * len(own)
        assert levels == [1 if p is None else levels[p] + 1 for p in parents]
        assert f"{len(step['path']) - 1 or 'None'} accepted" in at(driver, "verdict").text or len(step["nodes"]) == 1
        slider.send_keys(Keys.ARROW_LEFT)
    # a click on a token shows its step
    last = driver.find_elements("css selector", "#answer span")[-1]
    last.click()
    assert at(driver, "step-number").text == f"{len(steps)} of {len(steps)}"
    assert "marked" in last.get_attribute("class")


def test_keys_alone_are_enough(driver: Any, server: Served) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, server)
    at(driver, "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    ended(driver)
    driver.execute_script("document.querySelector('#tree .node').focus()")
    assert "the last token so far" in at(driver, "node").text
    seen = set()
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.ARROW_LEFT):
        driver.switch_to.active_element.send_keys(key)
        seen.add(driver.execute_script("return document.activeElement.getAttribute('aria-label')"))
        assert at(driver, "node").text in seen
    assert len(seen) > 1
    at(driver, "previous").send_keys(Keys.ENTER)
    before = at(driver, "step-number").text
    at(driver, "play").send_keys(Keys.SPACE)
    until(lambda: at(driver, "step-number").text != before)


class Spelling(Matcher):
    """An answer of these tokens, in this order."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def apply(self, logits_NV: torch.Tensor, answer: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            due = self._tokens[min(len(answer) + len(path), len(self._tokens) - 1)]
            kept = logits_NV[row, due].clone()
            logits_NV[row] = float("-inf")
            logits_NV[row, due] = kept


MARKUP = "<script>document.title='x'</script><img src=/none onerror=\"document.title='x'\">&lt;\u202e"


def test_what_a_model_writes_is_text(
    driver: Any, server: Served, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = engine.tokenizer.encode(MARKUP)

    def spelling(*given: Any) -> Any:
        made = asked_of(*given)
        made.options[0]["constraint"] = Spelling(tokens)
        return made

    monkeypatch.setattr("spec_sdk.serve.app.asked_of", spelling)
    opened(driver, server)
    title = driver.title
    asked(driver, prompt="Write markup.", max_tokens=len(tokens))
    ended(driver)
    assert at(driver, "answer").get_property("textContent") == MARKUP
    assert not driver.find_elements("css selector", "#shown script, #shown img, #shown iframe, #shown a")
    assert driver.title == title and "tiny" in title


def test_what_a_token_spells_is_text(driver: Any, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary may have whole tags as tokens, and a plugin any name."""

    def marked(steps: Any) -> Any:
        made = told(steps)
        for step in made["steps"]:
            for one in (*step["nodes"], *step["tokens"]):
                one["text"] = MARKUP
            for token in step["tokens"]:
                token["piece"] = MARKUP
            for node in step["nodes"][1:]:
                node["drafters"] = [MARKUP]
        return made

    monkeypatch.setattr("spec_sdk.serve.replies.told_of_steps", marked)
    opened(driver, server)
    asked(driver, prompt="Write markup.", max_tokens=3000)
    until(lambda: int(at(driver, "slider").get_attribute("max")) > 3)
    # while it runs: at the end tokens are cut to the text that the answer has
    assert MARKUP in at(driver, "answer").get_property("textContent")
    assert MARKUP in at(driver, "legend").get_property("textContent")
    at(driver, "previous").click()
    assert MARKUP in at(driver, "verdict").get_property("textContent")
    driver.execute_script("document.querySelector('#tree .node').focus()")
    assert MARKUP in at(driver, "node").get_property("textContent")
    assert not driver.find_elements("css selector", "#shown script, #shown img, #shown foreignObject")
    at(driver, "stop-run").click()
    ended(driver)


def test_stop_cancels_the_request(driver: Any, server: Served) -> None:
    opened(driver, server)
    before = server.metric("cancelled_requests_total")
    asked(driver, prompt="Count.", max_tokens=3500)
    until(lambda: at(driver, "state").text == "writing")
    at(driver, "stop-run").click()
    assert ended(driver) == "stopped" and at(driver, "error").text == ""
    server.wait_for("cancelled_requests_total", before + 1)
    server.wait_for("requests_running", 0)
    # what had come stays to be looked at
    assert driver.find_elements("css selector", "#tree .node") and at(driver, "slider").is_enabled()


def test_errors_are_told_in_a_line(driver: Any, engine: Engine) -> None:
    config = ServeConfig(port=0, max_num_seqs=1, max_queue=0, access_log=False)
    with served(engine, config) as running:
        opened(driver, running)
        first = begun(running.port)
        asked(driver, prompt="Hello", max_tokens=4)
        until(lambda: at(driver, "error").text)
        assert "takes 1" in at(driver, "error").text and "(status 429)" in at(driver, "error").text
        left(*first)
        running.wait_for("requests_running", 0)
        asked(driver, prompt="word " * 4200, max_tokens=4)
        until(lambda: "(status 400)" in at(driver, "error").text)
        asked(driver, prompt="Hello", max_tokens=4)
        assert ended(driver) == "ended at its limit of tokens" and at(driver, "error").text == ""
    asked(driver, prompt="Hello", max_tokens=4)
    until(lambda: at(driver, "error").text == "The server cannot be reached. Is it still running?")
    ended(driver)


def test_it_asks_for_a_key_where_one_is_needed(driver: Any, engine: Engine) -> None:
    with served(engine, keys=("secret",)) as running:
        opened(driver, running)
        assert "no valid API key" in at(driver, "error").text and at(driver, "key").is_displayed()
        assert driver.switch_to.active_element.get_attribute("id") == "key"
        at(driver, "key").send_keys("secret\t")
        until(lambda: "easyspec_paper" in at(driver, "about").text)
        assert at(driver, "error").text == ""
        asked(driver, max_tokens=5)
        assert ended(driver) == "ended at its limit of tokens"
        stored = driver.execute_script("return [localStorage.length, sessionStorage.length, document.cookie]")
        assert stored == [0, 0, ""]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1300])
def test_it_is_readable(width: int, dark: bool, driver: Any, server: Served) -> None:
    opened(driver, server, width, dark)
    asked(driver, prompt="Name three colours.", max_tokens=30)
    ended(driver)
    at(driver, "previous").click()
    at(driver, "ask").find_element("tag name", "summary").click()
    found = driver.execute_script(LOOK)
    assert found["overflow"] <= 0 and found["outside"] == [] and found["unnamed"] == []
    # WCAG 2.2, 1.4.3
    assert found["text"] >= 4.5 and found["nodes"] >= 4.5, found
    assert found["smallest"] >= 12
    assert (found["page"] != "rgb(255, 255, 255)") == dark
