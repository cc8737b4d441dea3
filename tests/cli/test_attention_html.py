"""The page of text shaded by attention hit rate: what it says of known hits, and when a run writes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.attention_html import DARKEST, ShadedAnswer, ShadedText, attention_page, shaded_pieces
from spec_sdk.model.tokenizer_stream import TokenStream
from tests.support.tiny_checkpoints import write_checkpoint

WORDS = [b"<b>", b" &", b"\xc3", b"\xa9", b"\n", b""]
END = 5


class ByteTokenizer:
    """Tokens are bytes; é takes two of them. The last token is a special one."""

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        if not skip_special_tokens and list(ids) == [END]:
            return "<|end|>"
        return b"".join(WORDS[i] for i in ids).decode(errors="replace")

    def stream(self) -> TokenStream:
        return TokenStream(self.decode)


class Spans(HTMLParser):
    """The spans of a page, as (attributes, text); fails on tags left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.spans: list[tuple[dict[str, str | None], str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag == "span":
            self.spans.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "span":
            self.spans[-1] = (self.spans[-1][0], self.spans[-1][1] + data)


def cycle(step: int, tokens: list[int], hits: list[bool | None] | None) -> dict[str, Any]:
    return {"event": "cycle", "step": step, "tokens": tokens, "attention": None if hits is None else {"hit": hits}}


def pieces_of(*events: dict[str, Any]) -> list[ShadedText]:
    tokenizer: Any = ByteTokenizer()
    return shaded_pieces([{"event": "request_start"}, *events], tokenizer)


def test_every_token_of_a_tree_pass_has_its_passs_rate() -> None:
    first, second, third = pieces_of(cycle(1, [0, 1], [True, None, False, True]), cycle(2, [0], [None, False]))
    assert (first.text, first.hits, first.guesses, first.first_step) == ("<b>", 2, 3, 1)
    assert second.hit_rate == first.hit_rate == pytest.approx(2 / 3)
    assert (third.hit_rate, third.first_step) == (0, 2)


def test_a_character_of_two_tokens_has_the_hits_of_both() -> None:
    [accented] = pieces_of(cycle(1, [2], [True, True]), cycle(2, [3], [True, False]))
    assert accented == ShadedText("é", 3, 4, 1, 2)


def test_half_a_character_at_the_end_is_shown() -> None:
    assert [piece.text for piece in pieces_of(cycle(1, [0, 2], [True]))] == ["<b>", "\N{REPLACEMENT CHARACTER}"]


def test_the_end_token_is_spelled_out() -> None:
    *_, end = pieces_of(cycle(1, [0, END], [True]))
    assert end == ShadedText("<|end|>", 1, 1, 1, 1, special=True)


def test_half_a_character_stays_before_the_end_token() -> None:
    pieces = pieces_of(cycle(1, [0, 2], [True]), cycle(2, [END], [False]))
    assert [piece.text for piece in pieces] == ["<b>", "\N{REPLACEMENT CHARACTER}", "<|end|>"]
    assert [(piece.first_step, piece.last_step) for piece in pieces] == [(1, 1), (1, 1), (2, 2)]


def test_the_page_shades_escapes_and_numbers() -> None:
    given = pieces_of(
        cycle(1, [0], [True, False, False, False]),
        cycle(2, [1, 4], [True, True]),
        cycle(3, [0], [None, None]),
        cycle(4, [END], None),
    )
    answer = ShadedAnswer("why <i>&</i>?", given, 0.5)
    page = attention_page("tokens & rates", {"λ": 0.2, "target": "<model>"}, [answer])
    for text in (
        "tokens &amp; rates",
        "<dt>λ</dt><dd>0.2</dd>",
        "&lt;model&gt;",
        "why &lt;i&gt;&amp;&lt;/i&gt;?",
        "50.0 %",
    ):
        assert text in page
    assert "<i>" not in page and "<b>" not in page and "<script" not in page and "http" not in page
    spans = [(attributes, text) for attributes, text in Spans(page).spans if "title" in attributes]
    assert [text for _, text in spans] == ["<b>", " &", "↵\n", "<b>", "<|end|>"]
    assert [attributes["title"] for attributes, _ in spans] == [
        "step 1: 1 of 4 predictions hit, 25%",
        "step 2: 2 of 2 predictions hit, 100%",
        "step 2: 2 of 2 predictions hit, 100%",
        "step 3: no prediction made",
        "step 4: no prediction made",
    ]
    shades = [re.search(r"([\d.]+)\)$", str(attributes.get("style"))) for attributes, _ in spans]
    assert [float(shade[1]) if shade else None for shade in shades] == [
        pytest.approx(DARKEST / 4),
        DARKEST,
        DARKEST,
        None,
        None,
    ]


@pytest.mark.parametrize("pipeline", ["alspec", "alspec_easyspec_tree"])
def test_a_run_that_speculates_on_attention_writes_the_page(
    pipeline: str, cli: Callable[..., Any], own_directory: Path
) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    common = ["model.target=model", "prompt=a < b c d e f", "max_new_tokens=12", "output_dir=out", "ignore_eos=true"]
    options = ["predictor.size=2", "attention_verifier.threshold=0.45"]
    assert cli(f"pipeline={pipeline}", *common, *options).status == 0
    page = (own_directory / "out" / "attention.html").read_text()
    [record] = json.loads((own_directory / "out" / "metrics.json").read_text())["prompts"]
    assert "a &lt; b c d e f" in page and "attention_sink (size=2)" in page and "<dd>0.45</dd>" in page
    assert f"hit rate {100 * record['attention']['hit_rate']:.1f} %" in page
    shown = "".join(text for attributes, text in Spans(page).spans if attributes.get("class") == "token")
    assert shown.split() == record["text"].split()

    # a later run into the same directory that speculates on no attention leaves no page that is not its own
    assert cli("pipeline=vanilla", *common).status == 0
    assert not (own_directory / "out" / "attention.html").exists()
