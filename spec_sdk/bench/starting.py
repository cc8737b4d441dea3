"""Candidates from those that enter: loaded one after the other, those that cannot be left out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from spec_sdk.bench.candidate import Candidate, Entrant
from spec_sdk.bench.records import CandidateRecord, FailureRecord, Record
from spec_sdk.errors import in_a_line


@contextlib.contextmanager
def started(
    entrants: Sequence[Entrant], write: Callable[[list[Record]], None], say: Callable[[str], None]
) -> Iterator[list[Candidate]]:
    """All that can be loaded, closed on the way out. ``write`` gets a record of each, ``say`` a line."""
    with contextlib.ExitStack() as stack:
        candidates = []
        for entrant in entrants:
            say(f"starting {entrant.name}")
            began = time.perf_counter()
            try:
                candidate = entrant.open()
            except Exception as error:  # whatever it fails with, the others go on
                line = in_a_line(error)
                say(f"{entrant.name} is left out: {line}")
                write([FailureRecord(candidate=entrant.name, reason="not_started", error=line).as_record()])
                continue
            stack.callback(candidate.close)
            candidates.append(candidate)
            load_s = time.perf_counter() - began
            facts = vars(candidate.facts())
            record = CandidateRecord(candidate=candidate.name, kind=candidate.kind, load_s=load_s, **facts)
            write([record.as_record()])
        yield candidates
