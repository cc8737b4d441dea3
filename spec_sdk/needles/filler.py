"""Long text to hide needles in, where the user gives none: sentences made from templates, none of them twice.

It has no digit, so that no number in it can be taken for a needle's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

PARAGRAPH = (4, 7)
"""Least and most sentences of a paragraph."""

WORDS = {
    "person": (
        "Agnes, Bertram, Cecily, Dorothy, Edmund, Felix, Greta, Harold, Imogen, Jasper, Katrin, Leopold, Marta, "
        "Norbert, Olive, Percy, Rosalind, Stefan, Thea, Ursula, Victor, Winifred, Yvonne, Zachary"
    ),
    "trade": (
        "baker, blacksmith, bookbinder, carpenter, clockmaker, cobbler, doctor, farmer, fisherman, gardener, "
        "glazier, judge, librarian, miller, musician, painter, postman, sailor, schoolteacher, shepherd, surveyor, "
        "tailor"
    ),
    "kin": (
        "aunt, brother, cousin, daughter, father, grandmother, mother, nephew, niece, sister, son, uncle, "
        "neighbour, oldest friend"
    ),
    "where": (
        "at the market, behind the church, beside the canal, by the old mill, in the attic, in the orchard, near "
        "the station, on the hill, under the bridge, in the harbour, at the edge of the forest, outside the "
        "theatre, in the kitchen, along the river, at the crossroads, in the square"
    ),
    "thing": (
        "basket, blanket, bottle, candle, chair, coat, drawing, hammer, kettle, ladder, lamp, letter, map, mirror, "
        "newspaper, parcel, rope, saddle, spoon, suitcase, teapot, violin"
    ),
    "quality": (
        "broken, clean, cracked, dusty, elegant, empty, expensive, faded, heavy, narrow, ordinary, patched, plain, "
        "polished, round, rusty, small, solid, strange, tall, worn"
    ),
    "when": (
        "after supper, at dawn, before noon, during the holidays, every other week, in early spring, in late "
        "autumn, late in the evening, on market days, on Sundays, that winter, the next morning, towards the end "
        "of summer, when the rain stopped, while the others slept, years later"
    ),
    "weather": (
        "a cold wind came down from the mountains, fog lay over the fields, it had rained for days, snow covered "
        "the roofs, the heat was hard to bear, the sky cleared at last, thunder rolled far away, the first frost "
        "had come, the river had risen, the clouds hung low, not a leaf moved"
    ),
    "habit": (
        "counted the boats, fed the geese, hummed an old tune, looked for mushrooms, mended the fence, practised "
        "the piano, read aloud, repaired shoes, sharpened the knives, sorted buttons, swept the yard, talked to "
        "the horses, walked to the next village, watered the beans, wound the clock"
    ),
    "reason": (
        "because nobody else would, for no particular reason, to pass the time, to please the children, as the "
        "custom was, without asking for money, although it was forbidden, in spite of the noise, in order to save "
        "fuel, out of pure stubbornness, on the advice of a stranger, as if it were a secret"
    ),
    "opinion": (
        "a great pity, an honest mistake, beyond repair, good enough for most people, hardly worth the trouble, "
        "long overdue, more useful than it looked, much too quiet, nobody's business, quite unnecessary, rather "
        "beautiful, the best of its kind, the wrong way round, worth a second look"
    ),
}
SLOTS = {slot: tuple(listed.split(", ")) for slot, listed in WORDS.items()}
TEMPLATES = (
    "{Person} the {trade} {habit} {when}, {reason}.",
    "{When}, {weather}, and the {trade} {habit} {where}.",
    "There was a {quality} {thing} {where}, and {person} thought it {opinion}.",
    "Nobody could say why {person}'s {kin} had left the {quality} {thing} {where}.",
    "“That {thing} is {opinion},” said the {trade}, and {habit} {where}.",
    "{Person} and {person} met {where} {when} and spoke about a {quality} {thing}.",
    "It was {opinion}, or so the {trade}'s {kin} said {when}.",
    "{Weather}, so the {trade} stayed {where} and {habit} {reason}.",
    "A {quality} {thing} had been sold {when} to {person}, the {kin} of a {trade}.",
    "Some people {where} called the new {thing} {opinion}, and others kept to the {quality} one.",
    "{Person}'s {kin} {habit} {where} {when}, {reason}.",
    "If {person} had not lost the {thing} {where}, the {trade} would never have {habit}.",
    "The {trade} promised to bring a {thing} {when}, but what arrived {where} was {quality} and {opinion}.",
    "Every {trade} in the county owned a {quality} {thing}, and most of them thought it {opinion}.",
    "{When}, {person} wrote to a {kin} that {weather} and that the {thing} was {opinion}.",
    "They found the {trade} {where}, asleep beside a {quality} {thing}, while {person} {habit}.",
    "Between the {quality} {thing} and the {quality} {thing}, {person} chose neither and {habit} {when}.",
    "What the {kin} of {person} remembered best was the {thing} {where}, {quality} and {opinion}.",
    "{Weather}; the {trade} put the {quality} {thing} {where} and went home {reason}.",
    "As far as {person} knew, the {thing} was {opinion}, and so the {trade} {habit} {when}.",
)


def filler_sentences(rng: random.Random) -> Iterator[str]:
    """Sentences without end, each with the white space that follows it: a blank line after a paragraph's last."""
    seen: set[str] = set()
    left = rng.randint(*PARAGRAPH)
    while True:
        sentence = _sentence(rng)
        if sentence in seen:
            continue
        seen.add(sentence)
        left -= 1
        yield sentence + (" " if left else "\n\n")
        left = left or rng.randint(*PARAGRAPH)


def _sentence(rng: random.Random) -> str:
    used: set[str] = set()

    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        word = rng.choice([word for word in SLOTS[name.lower()] if word not in used])
        used.add(word)
        return word[0].upper() + word[1:] if name[0].isupper() else word

    sentence = re.sub(r"\{(\w+)\}", fill, rng.choice(TEMPLATES))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", sentence)
