"""The report of a benchmark of many cases, under way: a run that is broken off keeps what it had."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from spec_sdk.bench.aims import Aim, print_aims
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.timing import own_clock

T = TypeVar("T")


class CaseReport:
    """Written to ``path`` as JSON after every case.

    ``content``: the benchmark's name, the facts of machine and device, its load before and after, the clock of
    :func:`own_clock`, ``facts``, ``cases``, what was ``left_out`` and why, ``aims``.
    ``seconds``: no case is begun after so long. ``now``: the clock for that, in seconds.
    """

    def __init__(
        self,
        path: Path,
        benchmark: str,
        device: torch.device,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        **facts: Any,
    ) -> None:
        self.path, self._seconds, self._now, self._began = path, seconds, now, now()
        self.content: dict[str, Any] = {
            "benchmark": benchmark,
            **device_facts(device),
            "load": os.getloadavg(),
            "clock": "processor time" if own_clock(device) is time.thread_time else "wall time",
            **facts,
            "cases": [],
            "left_out": [],
            "aims": [],
        }

    @property
    def cases(self) -> list[dict[str, Any]]:
        """Those so far."""
        cases: list[dict[str, Any]] = self.content["cases"]
        return cases

    def in_time(self, cases: Iterable[T], label: Callable[[T], str] = str) -> Iterator[T]:
        """The cases that there is time to begin; the others are left out, by their label."""
        for case in cases:
            if self._now() - self._began > self._seconds:
                self.leave_out(f"{label(case)}: no time left of {self._seconds:.0f} s")
            else:
                yield case

    def add(self, case: dict[str, Any]) -> None:
        """A case that was measured."""
        self.cases.append(case)
        self.write()

    def leave_out(self, what: str) -> None:
        """Something that was not measured, and why: kept, and said on stdout."""
        self.content["left_out"].append(what)
        print(f"left out: {what}", flush=True)

    def finish(self, aims: Sequence[Aim] = ()) -> None:
        """Write it with its aims, and say on stdout where it is and which aims are met."""
        self.content |= {"load_after": os.getloadavg(), "aims": list(aims)}
        self.write()
        print(f"written: {self.path}", flush=True)
        print_aims(aims)

    def write(self) -> None:
        """Make its directory and write what there is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
