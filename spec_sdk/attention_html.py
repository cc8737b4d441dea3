"""The text of a run with every token shaded by its hit rate (ALSpec, Fig. 8), as one HTML file without scripts.

A token's hit rate is that of the target pass that gave it: the share of the pass's attention predictions that were
accepted. The tokens of one tree pass share one rate. Light tokens are those for which the model needed its exact
attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from spec_sdk.events import Event
from spec_sdk.metrics import ratio
from spec_sdk.tables import percent

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

DARKEST = 0.7
"""Opacity of the shade at a hit rate of 1: the text on it stays readable."""

STYLE = """
:root { color-scheme: light; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.7 system-ui, sans-serif; color: #111; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1rem; }
dd { margin: 0; }
.prompt, .answer { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { color: #555; }
.answer { border: 1px solid #ccc; border-radius: 4px; padding: 0.5rem 0.8rem; }
.answer span, .legend span { border-radius: 3px; padding: 0.1em 0; }
.legend span { padding: 0.1em 0.5em; border: 1px solid #ccc; }
.none { border-bottom: 2px dotted #999; }
.special { font-family: monospace; font-size: 85%; }
"""


@dataclass(frozen=True)
class ShadedText:
    """What one token adds to the text, or several that spell one character together.

    ``hits`` of the ``guesses`` made in its passes, ``first_step`` to ``last_step``, were accepted. ``special``: a token
    that is no text, such as the end token, and is spelled out.
    """

    text: str
    hits: int
    guesses: int
    first_step: int
    last_step: int
    special: bool = False

    @property
    def hit_rate(self) -> float | None:
        """None where nothing was guessed: a short context, or layers that never speculate."""
        return ratio(self.hits, self.guesses)


@dataclass(frozen=True)
class ShadedAnswer:
    """One prompt as it was typed, its answer in pieces, and the hit rate over its passes."""

    prompt: str
    pieces: Sequence[ShadedText]
    hit_rate: float | None


def shaded_pieces(events: Sequence[Event], tokenizer: Tokenizer) -> list[ShadedText]:
    """The tokens of one request's cycles in order, each with its pass's hits."""
    pieces: list[ShadedText] = []
    stream, waiting = tokenizer.stream(), None
    for event in events:
        if event["event"] != "cycle":
            continue
        guesses = [hit for hit in (event["attention"] or {"hit": []})["hit"] if hit is not None]
        for token in event["tokens"]:
            here = ShadedText("", sum(guesses), len(guesses), event["step"], event["step"])
            text = stream.push([token])
            if not text and not tokenizer.decode([token]):
                if waiting is not None:
                    pieces.append(replace(waiting, text=stream.flush()))
                    waiting = None
                pieces.append(replace(here, text=tokenizer.decode([token], skip_special_tokens=False), special=True))
                continue
            # half a character waits for the token that completes it
            waiting = here if waiting is None else _joined(waiting, here)
            if text:
                pieces.append(replace(waiting, text=text))
                waiting = None
    if waiting is not None:
        pieces.append(replace(waiting, text=stream.flush()))
    return [piece for piece in pieces if piece.text]


def attention_page(title: str, facts: Mapping[str, Any], answers: Sequence[ShadedAnswer]) -> str:
    """The whole page: ``facts`` of the run, a legend, then each answer with a number for every token it hovers over."""
    parts = [
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>',
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()),
        f"</dl>\n{_legend()}",
    ]
    for i, answer in enumerate(answers, start=1):
        parts.append(f"<h2>Prompt {i} of {len(answers)}: hit rate {percent(answer.hit_rate)}</h2>")
        prompt = f'<div class="prompt">{escape(answer.prompt)}</div>'
        parts.append(f"<details><summary>the prompt</summary>{prompt}</details>")
        parts.append(f'<div class="answer">{"".join(map(_span, answer.pieces))}</div>')
    return "\n".join([*parts, "</body>\n</html>\n"])


def _joined(first: ShadedText, second: ShadedText) -> ShadedText:
    return replace(
        first, hits=first.hits + second.hits, guesses=first.guesses + second.guesses, last_step=second.last_step
    )


def _legend() -> str:
    swatches = (f'<span style="{_shade(rate)}">{rate:.0%}</span>' for rate in (0.0, 0.25, 0.5, 0.75, 1.0))
    return (
        f'<p class="legend">share of attention predictions that hit in a token\'s pass: {" ".join(swatches)} '
        '<span class="none">no prediction made</span></p>'
    )


def _span(piece: ShadedText) -> str:
    steps = f"step {piece.first_step}"
    if piece.last_step > piece.first_step:
        steps = f"steps {piece.first_step} to {piece.last_step}"
    special = " special" if piece.special else ""
    # a line break has no width that could be shaded
    text = escape(piece.text).replace("\n", "↵\n")
    if piece.hit_rate is None:
        return f'<span class="none{special}" title="{steps}: no prediction made">{text}</span>'
    title = f"{steps}: {piece.hits} of {piece.guesses} predictions hit, {piece.hit_rate:.0%}"
    look = f'class="token{special}" style="{_shade(piece.hit_rate)}"'
    return f'<span {look} title="{title}">{text}</span>'


def _shade(hit_rate: float) -> str:
    return f"background: rgba(26, 127, 55, {DARKEST * hit_rate:.3f})"
