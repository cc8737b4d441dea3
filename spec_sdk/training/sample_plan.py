"""Which samples a data set has: prompts of files first, then what the target writes itself from forced openings."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from spec_sdk.errors import UserError, message_of
from spec_sdk.files import expanded, read_text
from spec_sdk.prompts import SHIPPED, read_prompt_texts
from spec_sdk.training.samples import Planned

SHIPPED_OPENINGS = "many_kinds"
_OPENINGS = {SHIPPED_OPENINGS: Path(__file__).parents[1] / "data" / "openings.yaml"}


@dataclass(frozen=True)
class SamplePlan:
    """Sample ``i`` of a data set, for any i: it depends on ``seed`` and i alone, so that a run can go on anywhere.

    ``only_held_out``, ``texts``: kind and text of the prompts of files, the first of which are never trained on.
    ``openings``: kind → beginnings of prompts; empty for none. ``held_out``: share of the others that is not trained
    on. Half of all held-out samples are answered at temperature 1, the others greedily; what is trained on is answered
    at one of ``temperatures``, by chance.
    """

    only_held_out: Sequence[tuple[str, str]]
    texts: Sequence[tuple[str, str]]
    openings: Mapping[str, Sequence[str]]
    seed: int
    held_out: float
    temperatures: Sequence[float]

    @property
    def samples(self) -> int | None:
        """How many there are; None for as many as anybody wants."""
        return None if self.openings else len(self.only_held_out) + len(self.texts)

    @property
    def fingerprint(self) -> str:
        """Of all prompts of files and beginnings of prompts, in a few digits."""
        given = [list(self.only_held_out), list(self.texts), sorted(self.openings.items())]
        return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]

    def __getitem__(self, number: int) -> Planned:
        chance = random.Random(f"{self.seed}:{number}")
        given = [*self.only_held_out, *self.texts]
        held_out, sampled = chance.random() < self.held_out, chance.random() < 0.5
        held_out = held_out or number < len(self.only_held_out)
        # a stream of its own: prompts are the same at any temperatures
        own = random.Random(f"{self.seed}:{number}:temperature").choice(self.temperatures)
        temperature = float(sampled) if held_out else own
        if number < len(given):
            kind, text = given[number]
            return Planned(number, kind, text, "", held_out, temperature)
        kind = chance.choice(sorted(self.openings))
        return Planned(number, kind, None, chance.choice(self.openings[kind]), held_out, temperature)


def read_texts(files: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Kind, the file's name, and text of every prompt of ``files``. Raises UserError, naming ``option``."""
    texts = []
    for name in files:
        kind = name if name in SHIPPED else Path(name).stem
        texts += [(kind, text) for text in read_prompt_texts(name, option)]
    return texts


def read_openings(name: str, option: str) -> dict[str, list[str]]:
    """Kind → beginnings of prompts, from a YAML file or the one that comes with spec-sdk. Raises UserError."""
    path = _OPENINGS.get(name) or expanded(name, option)
    if not path.exists():
        raise UserError(f"{option}: {name} does not exist; {SHIPPED_OPENINGS} comes with spec-sdk")
    text = read_text(path, f"{option}: {name}")
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{option}: {name} is no YAML: {message_of(error)}") from error
    if not isinstance(values, Mapping) or not values:
        raise UserError(f"{option}: {name} must be a mapping of kinds of prompts to lists of their beginnings")
    openings: dict[str, list[str]] = {}
    for kind, texts in values.items():
        good = isinstance(texts, list) and texts and all(isinstance(text, str) and text.strip() for text in texts)
        if not isinstance(kind, str) or not good:
            raise UserError(f"{option}: {name}, {kind}: must be a list of texts, none of them empty")
        openings[kind] = texts
    return openings
