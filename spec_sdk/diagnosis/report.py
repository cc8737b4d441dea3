"""What was found, gathered section by section, and shown: as text for people, as JSON for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from spec_sdk.contracts import Finding, SelfTest
from spec_sdk.counted import counted
from spec_sdk.diagnosis.packages import Extra
from spec_sdk.diagnosis.self_tests import Outcome, carried_out
from spec_sdk.errors import UserError, in_a_line
from spec_sdk.installed import Problem
from spec_sdk.tables import print_facts, print_table, text_width, wrapped


@dataclass
class TestedOps:
    """Whose operations, and what came of each, in so many seconds. ``refusal``: why there are none, if so."""

    name: str
    outcomes: list[Outcome] = field(default_factory=list)
    refusal: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, name: str, tests: Iterable[SelfTest]) -> TestedOps:
        """Carry out the tests. To be refused them by a UserError is no fault; if they cannot be made, that is wrong."""
        start, outcomes = time.perf_counter(), list[Outcome]()
        try:
            outcomes += map(carried_out, tests)
        except UserError as refusal:
            return cls(name, outcomes, str(refusal))
        except Exception as error:  # a third party's backend may raise anything
            outcomes.append(Outcome("self-tests", "made", "wrong", None, in_a_line(error)))
        return cls(name, outcomes, seconds=time.perf_counter() - start)

    @property
    def wrong(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.verdict == "wrong"]


@dataclass
class Report:
    """All that a doctor finds. ``sections``: findings by heading."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)
    extras: Sequence[Extra] = ()
    problems: Sequence[Problem] = ()
    tested: list[TestedOps] = field(default_factory=list)

    def look(self, heading: str, findings: Callable[[], Iterable[Finding]]) -> None:
        """Add a section. What cannot be looked at is told, and keeps nobody from looking at the rest."""
        found = self.sections.setdefault(heading, [])
        try:
            for finding in findings():
                found.append(finding)
        except Exception as error:  # of broken environments nothing can be relied on
            found.append(Finding("not looked at", in_a_line(error), "report it to whose it is"))

    @property
    def healthy(self) -> bool:
        """Whether all that is there computes what it should, and could be loaded."""
        return not self.problems and not any(tested.wrong for tested in self.tested)

    def advice(self) -> list[str]:
        """What to change, in the order in which it was found."""
        wrong = [f"{t.name}, {o.operation} ({o.numbers}) is wrong: {o.words}" for t in self.tested for o in t.wrong]
        broken = [f"{problem}: install it again, or another version of it" for problem in self.problems]
        found = [f for findings in self.sections.values() for f in findings if f.advice]
        return [*wrong, *broken, *(f"{f.subject.strip()} ({f.text}): {f.advice}" for f in found)]

    def as_data(self) -> Mapping[str, Any]:
        """The same as plain data."""
        return {
            "healthy": self.healthy,
            "advice": self.advice(),
            "findings": {
                heading: [asdict(finding) | {"subject": finding.subject.strip()} for finding in findings]
                for heading, findings in self.sections.items()
            },
            "extras": [asdict(extra) for extra in self.extras],
            "broken_plugins": [asdict(problem) for problem in self.problems],
            "self_tests": [
                {
                    "of": tested.name,
                    "not_available": tested.refusal or None,
                    "seconds": tested.seconds,
                    "outcomes": [asdict(outcome) for outcome in tested.outcomes],
                }
                for tested in self.tested
            ],
        }


def show(report: Report, file: TextIO) -> None:
    """The whole report, in lines as wide as ``file``."""
    for heading, findings in report.sections.items():
        print(f"{heading}\n", file=file)
        # a fact's name may be there more than once, as that of each compiler is
        for finding in findings:
            print_facts({f"  {'!' if finding.advice else ' '} {finding.subject.ljust(17)}": finding.text}, file)
        print(file=file)
    rows = [
        [extra.name, "there" if not extra.missing else "missing: " + ", ".join(extra.missing)]
        for extra in report.extras
    ]
    print_table("extras", ["extra", "state"], rows, file, numbers=False)
    for extra in report.extras:
        if extra.missing:
            _say(f"to get {extra.name}: {extra.command}", file, 2)
    print(file=file)
    for tested in report.tested:
        _show_tested(tested, file)
    advice = report.advice()
    print("what to change\n" if advice else "nothing to change", file=file)
    for line in advice:
        _say(f"- {line}", file, 2)


def summary(report: Report) -> str:
    """One line: how many self-tests went well."""
    outcomes = [outcome for tested in report.tested for outcome in tested.outcomes]
    right = sum(outcome.verdict == "ok" for outcome in outcomes)
    tried = sum(outcome.verdict != "not available" for outcome in outcomes)
    seconds = sum(tested.seconds for tested in report.tested)
    broken = f", {counted(len(report.problems), 'plugin')} cannot be loaded" if report.problems else ""
    return f"{right} of {tried} self-tests passed in {seconds:.1f} s{broken}"


def _show_tested(tested: TestedOps, file: TextIO) -> None:
    title = f"self-test of {tested.name}"
    if tested.refusal:
        _say(f"{title}: not available: {tested.refusal}", file)
        print(file=file)
        return
    numbers = list(dict.fromkeys(outcome.numbers for outcome in tested.outcomes))
    rows: dict[str, dict[str, str]] = {}
    for outcome in tested.outcomes:
        rows.setdefault(outcome.operation, {})[outcome.numbers] = _cell(outcome)
    table = [[operation, *(cells.get(name, "–") for name in numbers)] for operation, cells in rows.items()]
    print_table(f"{title}: largest error", ["operation", *numbers], table, file, numbers=False)
    for outcome in tested.outcomes:
        if outcome.words:
            _say(f"{outcome.operation}, {outcome.numbers}: {outcome.verdict}: {outcome.words}", file, 2)
    if any(outcome.words for outcome in tested.outcomes):
        print(file=file)


def _cell(outcome: Outcome) -> str:
    if outcome.verdict != "ok":
        return outcome.verdict.upper() if outcome.verdict == "wrong" else outcome.verdict
    return "ok" if not outcome.error else f"ok, {outcome.error:.0e}"


def _say(text: str, file: TextIO, indent: int = 0) -> None:
    print(wrapped(f"{' ' * indent}{text}", text_width(file), indent + 2), file=file)
