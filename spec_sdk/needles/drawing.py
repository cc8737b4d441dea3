"""The needles: random MD5 hashes and made-up facts (ALSpec, App. G), each a sentence and a question about it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from spec_sdk.errors import UserError
from spec_sdk.needles.scoring import words

Kind = Literal["hash", "fact"]
KINDS: tuple[Kind, ...] = ("hash", "fact")
MOST_DRAWS = 1000
"""Facts drawn in vain before giving up: the text may have the answers of nearly all that can be made up."""


@dataclass(frozen=True)
class Needle:
    """A sentence to hide in a text, a question that only it answers, and the right answer, in the sentence's words."""

    kind: Kind
    sentence: str
    question: str
    answer: str


FIRST = ("Var", "Quill", "Oster", "Brem", "Tol", "Hask", "Wend", "Sker", "Myr", "Dun", "Ysel", "Grav", "Lorn", "Pell")
LAST = (
    "holt",
    "mere",
    "by",
    "stow",
    "wick",
    "garth",
    "fell",
    "mouth",
    "dale",
    "ness",
    "combe",
    "haven",
    "moor",
    "ford",
)

PHRASES: dict[str, tuple[str, ...]] = {
    "name": (
        *("Ambrose Tindle", "Philippa Crane", "Otto Vanterpool", "Salome Birdwhistle", "Ignatius Pym"),
        *("Hester Quarrell", "Lucian Applegarth", "Beatrix Munk"),
    ),
    "stuff": (
        *("birch bark", "red copper", "woven nettle", "smoked glass", "whale bone", "pressed felt", "blue slate"),
        "knotted silk",
    ),
    "dish": (
        *("pickled plum soup", "fried thistle cakes", "smoked eel pudding", "sour cherry dumplings"),
        *("roasted acorn bread", "salted pear stew", "cold lentil pie", "honeyed turnip porridge"),
    ),
    "animal": (
        *("stuffed walrus", "tame heron", "one-eyed badger", "grey parrot", "marble tortoise", "wooden camel"),
        *("bronze otter", "white peacock"),
    ),
    "password": (
        *("copper lantern", "silent orchard", "velvet anchor", "paper dragon", "winter saffron", "hollow thimble"),
        *("crooked feather", "amber whistle"),
    ),
}
FACTS: tuple[tuple[str, str, str], ...] = (
    ("The mayor of {town} keeps {count} tortoises.", "How many tortoises does the mayor of {town} keep?", "count"),
    ("The town of {town} was founded by {name}.", "Who founded the town of {town}?", "name"),
    ("The great bell of {town} was cast in the year {year}.", "When was the great bell of {town} cast?", "year"),
    ("The umbrellas of {town} are made of {stuff}.", "What are the umbrellas of {town} made of?", "stuff"),
    ("The favourite dish of {town} is {dish}.", "What is the favourite dish of {town}?", "dish"),
    ("The bridge of {town} is guarded by a {animal}.", "What guards the bridge of {town}?", "animal"),
    ("The password of {town} is {password}.", "What is the password of {town}?", "password"),
    ("The castle of {town} has {count} windows.", "How many windows does the castle of {town} have?", "count"),
)
"""Sentence, question, and which of its blanks is the answer."""


def draw_needles(rng: random.Random, hashes: int, facts: int, text: str) -> list[Needle]:
    """So many needles, hashes first. No fact's answer or subject stands in ``text``, and no two needles share any.

    Raises UserError if there are not so many facts of which neither ``text`` nor another needle has the answer.
    """
    needles = [draw_hash(rng, number) for number in range(1, hashes + 1)]
    known = f" {words(text)} "
    kinds: list[tuple[str, str, str]] = []
    for drawn in range(facts):
        for _ in range(MOST_DRAWS):
            # all kinds of fact before any comes again
            kinds = kinds or rng.sample(FACTS, len(FACTS))
            needle, town = draw_fact(rng, kinds.pop())
            if f" {words(needle.answer)} " not in known and f" {words(town)} " not in known:
                break
        else:
            raise UserError(
                f"task.facts: {facts} facts cannot be made up without an answer that the text or another fact has; "
                f"use task.facts={drawn}"
            )
        known += f"{words(needle.sentence)} "
        needles.append(needle)
    return needles


def draw_hash(rng: random.Random, number: int) -> Needle:
    """The MD5 hash of random bytes, and its number."""
    digest = hashlib.md5(rng.randbytes(16), usedforsecurity=False).hexdigest()
    return Needle("hash", f"Hash number {number} is {digest}.", f"What is hash number {number}?", digest)


def draw_fact(rng: random.Random, kind: tuple[str, str, str]) -> tuple[Needle, str]:
    """A fact of this kind about a town that does not exist, and the town."""
    sentence, question, blank = kind
    town = rng.choice(FIRST) + rng.choice(LAST)
    if blank == "count":
        answer = str(rng.randint(23, 989))
    elif blank == "year":
        answer = str(rng.randint(1100, 1899))
    else:
        answer = rng.choice(PHRASES[blank])
    filled = {"town": town, blank: answer}
    return Needle("fact", sentence.format(**filled), question.format(**filled), answer), town
