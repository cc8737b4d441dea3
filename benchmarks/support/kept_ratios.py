"""Ratios on disk: one file of JSON for each class of machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.ratios import KeptRatio, Ratio
from spec_sdk.bench.machine import slug
from spec_sdk.errors import UserError
from spec_sdk.files import read_text, write_json

SCHEMA_VERSION = 1
MOST_KEPT = 5
"""Runs of one ratio; the oldest go."""


@dataclass(frozen=True)
class MachineClass:
    """Machines whose ratios are alike: the same processor (with its threads), cores, torch and dtype."""

    machine: str
    cores: int
    torch: str
    dtype: str

    @staticmethod
    def of(facts: Mapping[str, Any], dtype: str) -> MachineClass:
        """From :func:`spec_sdk.bench.machine.machine_facts`."""
        return MachineClass(facts["machine"], facts["cores"], facts["torch"], dtype)

    def __str__(self) -> str:
        return f"{self.machine}, {self.cores} cores, torch {self.torch}, {self.dtype}"

    def file(self, directory: Path) -> Path:
        """Where its ratios are kept."""
        return directory / f"{slug(str(self))}.json"


@dataclass
class KeptRatios:
    """What was kept of a class of machines: name of a ratio → its runs, the newest last."""

    machine: MachineClass
    runs: dict[str, list[KeptRatio]] = field(default_factory=dict)

    @staticmethod
    def read(directory: Path, machine: MachineClass) -> KeptRatios:
        """Those of this class; none where no file is of it. Raises UserError for a file that is broken."""
        path = machine.file(directory)
        if not path.exists():
            return KeptRatios(machine)
        try:
            content = json.loads(read_text(path, str(path)))
            if content["schema_version"] != SCHEMA_VERSION or content["machine"] != asdict(machine):
                raise UserError(f"{path}: it is of {content['machine']}, schema {content['schema_version']}")
            runs = {name: [_kept(run) for run in kept] for name, kept in content["ratios"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: no kept ratios: {error}") from error
        return KeptRatios(machine, {name: kept for name, kept in runs.items() if kept})

    def keep(self, ratios: Mapping[str, Ratio], commit: str, measured: str) -> None:
        """Add a run; of ratios that it does not have, nothing changes."""
        for name, ratio in ratios.items():
            self.runs[name] = [*self.runs.get(name, ()), KeptRatio(ratio, commit, measured)][-MOST_KEPT:]

    def forget(self, names: Sequence[str]) -> None:
        """What is not measured any more."""
        for name in names:
            self.runs.pop(name, None)

    def write(self, directory: Path) -> Path:
        """Write the file of this class, whole or not at all."""
        directory.mkdir(parents=True, exist_ok=True)
        path = self.machine.file(directory)
        ratios = {name: [_as_json(run) for run in runs] for name, runs in sorted(self.runs.items())}
        write_json(path, {"schema_version": SCHEMA_VERSION, "machine": asdict(self.machine), "ratios": ratios})
        return path

    def of_parts(self, parts: Sequence[str]) -> dict[str, list[KeptRatio]]:
        """Those whose name begins with one of these and a colon."""
        return {name: runs for name, runs in self.runs.items() if name.partition(":")[0] in parts}


def other_classes(directory: Path, machine: MachineClass) -> list[str]:
    """File names of other classes' ratios."""
    return sorted(path.stem for path in directory.glob("*.json") if path != machine.file(directory))


def _as_json(run: KeptRatio) -> dict[str, Any]:
    return {
        "ratio": round(run.ratio.value, 4),
        "noise": round(run.ratio.noise, 5),
        "samples": run.ratio.samples,
        "commit": run.commit,
        "measured": run.measured,
    }


def _kept(run: Mapping[str, Any]) -> KeptRatio:
    ratio = Ratio(float(run["ratio"]), float(run["noise"]), int(run["samples"]))
    if not (0 < ratio.value < float("inf") and 0 <= ratio.noise < float("inf")):
        raise ValueError(f"{run} is no ratio")
    return KeptRatio(ratio, str(run["commit"]), str(run["measured"]))
