"""A haystack: needles at random places in a long text of a given length, and the prompts that ask for them.

The length is counted by the model's own tokenizer, with the chat template around the text.
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from spec_sdk.common_prefix import common_prefix
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.needles.drawing import Needle, draw_needles
from spec_sdk.needles.filler import filler_sentences
from spec_sdk.prompts import encode

if TYPE_CHECKING:
    from spec_sdk.model.tokenizer import Tokenizer

LONGEST_SENTENCE = 400
"""Characters, after which a user's text is cut at white space: a table or a poem may have no full stop at all."""
FEWEST_TOKENS = 6
"""Tokens that a sentence of the built-in text has at least, whatever the tokenizer: it has more words."""
MOST_JUDGED = 16
"""Questions whose prompts are looked at to tell the least context. A thousand needles alone are 40,000 tokens."""
TASK = "Answer the question from the text above, and give the answer alone. If the text does not tell, say so."


@dataclass(frozen=True)
class Question:
    """One needle and how it is asked for.

    ``place``: tokens of the prompt before the needle's sentence. ``prompt``: the ids of the whole prompt, up to where
    the model answers. There the needle's sentence would be right: ``lead`` are its ids up to the answer in it,
    ``answer`` those of the answer; what follows is left out.
    """

    needle: Needle
    place: int
    prompt: tuple[int, ...]
    lead: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def share(self) -> float:
        """The needle's place as a share of the prompt, from 0 to 1."""
        return self.place / len(self.prompt)


@dataclass(frozen=True)
class Haystack:
    """A text with needles in it (``text``), one question per needle, in the order they were drawn: hashes first."""

    text: str
    seed: int
    questions: tuple[Question, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the longest prompt."""
        return max(len(question.prompt) for question in self.questions)


def build_haystack(
    tokenizer: Tokenizer,
    context: int,
    *,
    hashes: int = 7,
    facts: int = 3,
    seed: int = 0,
    text: str | None = None,
    chat: bool | None = None,
) -> Haystack:
    """As many whole sentences as fit, with the needles between them, so that no prompt is longer than ``context``.

    ``context`` is in tokens, all of the prompt counted. ``text``: what to hide them in, from its beginning; None makes
    it up. ``chat`` None applies the chat template if there is one. The same arguments give the same haystack; another
    ``context`` leaves needles and made-up text as they are.
    Raises UserError if ``context`` is too short for the needles, or longer than ``text`` lasts.
    """
    rng = random.Random(f"needles {seed}")
    if text is None:
        sentences = list(islice(filler_sentences(random.Random(f"text {seed}")), context // FEWEST_TOKENS + 1))
    else:
        # a sentence has a token at least
        sentences = list(islice(split_sentences(text), context + 1))
    # of the user's text also what is left out: the same needles for every context
    needles = draw_needles(rng, hashes, facts, "".join(sentences) if text is None else text)
    order = rng.sample(range(len(needles)), len(needles))
    shares = [rng.random() for _ in needles]

    def hide(count: int) -> tuple[str, list[int]]:
        return hidden(sentences[:count], needles, shares, order)

    def ids(body: str, needle: Needle) -> list[int]:
        return encode(tokenizer, asked(body, needle, tokenizer, chat), chat)

    # the longest prompt is that of one of the longest questions: how its tokens join may decide
    longest = heapq.nlargest(MOST_JUDGED, needles, key=lambda needle: len(encode(tokenizer, needle.question, chat)))
    count = _last(lambda count: len(ids(hide(count)[0], longest[0])) <= context, len(sentences))
    while count >= 0 and max(len(ids(hide(count)[0], needle)) for needle in needles) > context:
        count -= 1
    if count < 0:
        least = max(len(ids(hide(0)[0], needle)) for needle in longest)
        raise UserError(
            f"task.context: {context} is too short for {counted(len(needles), 'needle')}; the least is {least}"
        )
    body, places = hide(count)
    questions = []
    for needle, at in zip(needles, places, strict=True):
        prompt = ids(body, needle)
        before = common_prefix(prompt, ids(body[:at].rstrip(), needle))
        questions.append(Question(needle, before, tuple(prompt), *right_ids(tokenizer, needle, chat)))
    haystack = Haystack(body, seed, tuple(questions))
    if count == len(sentences) and haystack.tokens < context:
        raise UserError(
            f"task.context: {context} is more than the text gives: with the needles it has {haystack.tokens} tokens; "
            f"use task.context={haystack.tokens} or less, or a longer task.text"
        )
    return haystack


def asked(text: str, needle: Needle, tokenizer: Tokenizer, chat: bool | None) -> str:
    """The user's message: the text, what to do, and the question. Without a chat template, also where to answer."""
    message = f"{text}\n\n{TASK}\n{needle.question}"
    return message if is_chat(tokenizer, chat) else f"{message}\nAnswer:"


def right_ids(tokenizer: Tokenizer, needle: Needle, chat: bool | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The needle's sentence as it stands after a prompt: the ids up to the answer in it, and those of the answer."""
    # where no template has begun a new line, the answer stands after a space
    sentence = needle.sentence if is_chat(tokenizer, chat) else f" {needle.sentence}"
    begin = sentence.index(needle.answer)
    until = tokenizer.encode(sentence[: begin + len(needle.answer)], add_special_tokens=False)
    lead = common_prefix(until, tokenizer.encode(sentence[:begin].rstrip(), add_special_tokens=False))
    return tuple(until[:lead]), tuple(until[lead:])


def is_chat(tokenizer: Tokenizer, chat: bool | None) -> bool:
    """Whether prompts go through the chat template; None: if there is one."""
    return tokenizer.has_chat_template if chat is None else chat


def split_sentences(text: str) -> Iterator[str]:
    """``text`` in sentences, each with the white space that follows it; joined they are ``text`` without its ends."""
    ends = r"[.!?…][\"'”’)\]]*\s+|[。！？]\s*|\n\s*\n\s*"
    for found in re.finditer(rf".+?(?:{ends}|$)", text.strip(), flags=re.DOTALL):
        yield from _shorter(found[0])


def _shorter(sentence: str) -> Iterator[str]:
    while len(sentence) > LONGEST_SENTENCE:
        # what has no white space so far ends at the first that comes
        cut = re.match(rf".{{1,{LONGEST_SENTENCE}}}\s+|\S+\s+", sentence, flags=re.DOTALL)
        if cut is None:
            break
        yield cut[0]
        sentence = sentence[cut.end() :]
    if sentence:
        yield sentence


def hidden(
    sentences: Sequence[str], needles: Sequence[Needle], shares: Sequence[float], order: Sequence[int]
) -> tuple[str, list[int]]:
    """The sentences with the needles between them, and where each needle begins (characters).

    ``shares[i]``: how far into the text needle i goes. ``order``: who goes first, where two want the same place: the
    second takes the next free one. Only with fewer places than needles do needles follow one another.
    """
    places = len(sentences) + 1
    taken: dict[int, list[int]] = {}
    for i in order:
        place = int(shares[i] * places)
        while place in taken and len(taken) < places:
            place = (place + 1) % places
        taken.setdefault(place, []).append(i)
    text, begins = "", [0] * len(needles)
    for place in range(places):
        for i in taken.get(place, ()):
            if text and not text[-1].isspace():
                text += " "
            begins[i] = len(text)
            text += needles[i].sentence + " "
        if place < len(sentences):
            text += sentences[place]
    return text.rstrip(), begins


def _last(fits: Callable[[int], bool], most: int) -> int:
    """The largest count of 0 … ``most`` that fits, if all below it do; -1 if none does."""
    low, high = -1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
