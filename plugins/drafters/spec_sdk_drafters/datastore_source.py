"""Guesses from a datastore: what followed the last tokens in texts of the past (REST, He et al. 2024)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from spec_sdk.files import expanded
from spec_sdk.model.models import Models
from spec_sdk_drafters.acceptance_rates import AcceptanceRates, RatesByTemperature
from spec_sdk_drafters.datastore import Datastore, Run
from spec_sdk_drafters.datastore_file import fingerprint, open_datastore
from spec_sdk_drafters.guess_source import GuessSource, Sources
from spec_sdk_drafters.suffix_source import length_class, share_class

SHORTEST, LONGEST = 2, 16
"""Tokens of the runs that are looked up, as in REST."""
CONTEXTS = 3
"""Runs of different lengths that are asked for what followed them."""
RAREST = 0.05
"""A token that followed less often than this share is not guessed."""
PRIOR = (
    (0.03, 0.13, 0.25, 0.26, 0.49),
    (0.05, 0.16, 0.28, 0.38, 0.61),
    (0.09, 0.20, 0.32, 0.44, 0.69),
    (0.12, 0.30, 0.50, 0.52, 0.86),
)
"""Rates to begin with, by run length (from 2 on) and share, as the suffix automaton has them.

Those of SmolLM2-135M-Instruct's greedy answers to 228 prompts of Spec-Bench, an eighth of them looked up in the others.
"""
SHORTER_PRIOR = 0.7
"""The rate of what only a shorter run was followed by, as a share of that."""
NOT_FOUND_PRIOR = 0.05

Runs = tuple[Run, ...]
Kind = tuple[int, int, bool]


class DatastoreSource(GuessSource):
    """What followed the longest runs at the text's end. Where the datastore has none it is silent."""

    name = "datastore"

    # beside a model, as the suffix automaton
    further_weight, further_offset = 0.75, 1.65

    def __init__(self, rates: AcceptanceRates, datastore: Datastore, vocabulary: int) -> None:
        self.rates = rates
        self._datastore = datastore
        self._vocabulary = vocabulary
        self._recent: list[int] = []
        self._end: Runs | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self._recent = [*self._recent, *tokens][-LONGEST:]
        self._end = None

    def end(self) -> Runs:
        if self._end is None:
            found, longest, occurrences = list[Run](), LONGEST, 0
            while len(found) < CONTEXTS:
                run = self._datastore.longest(self._recent, SHORTEST, longest, more_than=occurrences)
                if run is None:
                    break
                found.append(run)
                longest, occurrences = run.length - 1, run.occurrences
            self._end = tuple(found)
        return self._end

    def after(self, place: Runs, token: int) -> Runs:
        return tuple(run for before in place if (run := self._datastore.after(before, token)) is not None)

    def guesses(self, place: Runs) -> Mapping[int, Hashable]:
        found: dict[int, Hashable] = {}
        for run in place:
            for token, occurrences in self._datastore.continuations(run, RAREST):
                # ends of texts, and tokens of a model with more of them
                if token < self._vocabulary and token not in found:
                    share = occurrences / run.occurrences
                    shorter = run.length < place[0].length
                    found[token] = length_class(run.length), share_class(share, run.occurrences), shorter
        return found

    def other(self, place: Runs) -> Hashable:
        return None

    def silent(self, place: Runs) -> bool:
        return not place


class DatastoreSources(Sources):
    """The datastore of a file, looked up for all requests. ``keep``: what was learned of it is used again."""

    def __init__(self, datastore: Datastore, vocabulary: int, keep: bool) -> None:
        self._datastore = datastore
        self._vocabulary = vocabulary
        self._rates = RatesByTemperature(prior, keep)

    @classmethod
    def of_file(cls, name: str, models: Models, keep: bool) -> DatastoreSources:
        """Those of ``drafter.datastore``. Raises UserError for a file that cannot be used with the target."""
        where, target = "drafter.datastore", models.target
        tensors = open_datastore(expanded(name, where), fingerprint(target.tokenizer.vocabulary), where)
        return cls(Datastore(tensors), target.executor.vocabulary, keep)

    def new(self, temperature: float) -> DatastoreSource:
        return DatastoreSource(self._rates.of(temperature), self._datastore, self._vocabulary)

    def keep(self, answer: Sequence[int]) -> None:
        """A datastore stays as it was made."""


def prior(kind: Kind | None) -> float:
    """The rate of a kind of guess before any was seen."""
    if kind is None:
        return NOT_FOUND_PRIOR
    length, share, shorter = kind
    return PRIOR[length - 1][share] * (SHORTER_PRIOR if shorter else 1)
