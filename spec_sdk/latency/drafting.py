"""What a drafter would give on a GPU: its measured acceptance, and the time that its passes' weights take to be read.

Decoding one request is bound by memory: a pass takes the bytes of its weights over the bandwidth that is reached, and
rows of a tree cost nothing until their products take longer (Leviathan et al. 2023, arXiv:2211.17192, §3.4, with the
times of passes for costs).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.bench.figures import figures_of
from spec_sdk.bench.reading import read_bench
from spec_sdk.bench.records import VANILLA
from spec_sdk.errors import UserError
from spec_sdk.files import read_text
from spec_sdk.policy import FixedPolicy

TABLE = Path(__file__).parent / "drafting_8b.yaml"


@dataclass(frozen=True)
class Device:
    """``bandwidth``: bytes per second; ``multiplications``: of 16-bit numbers, per second."""

    name: str
    bandwidth: float
    multiplications: float


@dataclass(frozen=True)
class Drafting:
    """A drafter at work: what it reached, and what its cycles consist of.

    ``temperature``: of the answers it was measured on; None where ``mean_accepted_tokens``, tokens per pass of the
    target, are taken for granted. ``nodes``: rows of the target's pass; ``levels``: passes of ``parameters`` that
    follow one another; ``host_s``: work of the host beside them.
    """

    name: str
    temperature: float | None
    mean_accepted_tokens: float
    nodes: float
    levels: int
    parameters: float
    host_s: float


@dataclass(frozen=True)
class Speed:
    """Tokens per second of plain decoding and of a drafter."""

    plain: float
    drafted: float

    @property
    def speedup(self) -> float:
        return self.drafted / self.plain


class GPUTable:
    """The shipped table of weights and devices."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.title: str = values["title"]
        self.devices = [Device(name, **known) for name, known in values["devices"].items()]
        self.parameters: Mapping[str, float] = values["drafters"]
        self._target, self._bytes = float(values["target"]), float(values["bytes_per_parameter"])
        self._share, self._pass_s = float(values["share_of_bandwidth"]), float(values["pass_us"]) / 1e6
        self.assumed = [
            Drafting(
                row["drafter"],
                None,
                row["mean_accepted_tokens"],
                row["nodes"],
                row["levels"],
                self.parameters[row["drafter"]],
                0.0,
            )
            for row in values["assumed"]
        ]

    @staticmethod
    def shipped() -> GPUTable:
        return GPUTable(yaml.safe_load(TABLE.read_text(encoding="utf-8")))

    def pass_s(self, device: Device, parameters: float, rows: float) -> float:
        """Seconds of a pass: of reading the weights, or of multiplying with them where that is longer."""
        reading = parameters * self._bytes / (device.bandwidth * self._share)
        return max(reading, rows * parameters / (device.multiplications * self._share)) + self._pass_s

    def speed(self, device: Device, drafting: Drafting) -> Speed:
        """Plain decoding, and the drafter's cycles: its levels, the host's work, one pass of the target."""
        plain_s = self.pass_s(device, self._target, 1)
        level_s = self.pass_s(device, drafting.parameters, 1) if drafting.parameters else 0.0
        cycle_s = self.pass_s(device, self._target, drafting.nodes) + drafting.levels * level_s + drafting.host_s
        return Speed(1 / plain_s, drafting.mean_accepted_tokens / cycle_s)


def measured_drafters(path: Path, table: GPUTable, option: str) -> tuple[list[Drafting], list[str]]:
    """What ``task=bench`` measured: a row per temperature and drafter, over all tasks; and the names of drafters of
    which the table knows no weights. ``path``: its directory, or a report (:func:`_of_report`).

    Raises UserError, naming ``option``, for what cannot be read or is something else.
    """
    try:
        measured = _of_bench(path) if path.is_dir() else _of_report(path, option)
        found, unknown = list[Drafting](), list[str]()
        for one in measured:
            pipeline = one.name.split()[0]
            if table.parameters.get(pipeline) and one.policy != FixedPolicy.name:
                continue  # by this machine's prices it paused where another would draft
            if pipeline in table.parameters:
                found.append(one.drafting(pipeline, table.parameters[pipeline]))
            elif pipeline != VANILLA and one.name not in unknown:
                unknown.append(one.name)
    except UserError as error:
        raise error if str(error).startswith(option) else UserError(f"{option}: {error}") from error
    except (RecursionError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{option}: {path} is no directory of task=bench, and no report of drafters") from error
    return found, unknown


@dataclass(frozen=True)
class _Measured:
    """A candidate's figures over all prompts. ``draft_s``: of a cycle, on the host and wherever the draft model ran."""

    name: str
    policy: str
    temperature: float
    mean_accepted_tokens: float
    nodes: float
    deepest: int
    draft_s: float

    def drafting(self, pipeline: str, parameters: float) -> Drafting:
        # drafters with a model draft to the same depth in every cycle; the others make no passes
        levels, host_s = (self.deepest, 0.0) if parameters else (0, self.draft_s)
        return Drafting(pipeline, self.temperature, self.mean_accepted_tokens, self.nodes, levels, parameters, host_s)


def _of_bench(directory: Path) -> list[_Measured]:
    """Pipelines at batch size 1 that made a pass."""
    run, found = read_bench(directory), list[_Measured]()
    for setting, name in itertools.product(run.settings, run.candidates):
        figures = figures_of(run, name, setting) if setting.batch_size == 1 else None
        if figures is None or run.kind_of(name) != "pipeline" or figures.stage_s_per_cycle is None:
            continue
        stages = figures.stage_s_per_cycle
        found.append(
            _Measured(
                name,
                (run.candidates[name].plugins or {})["policy"]["name"],
                setting.temperature,
                figures.mean_accepted_tokens or 1.0,
                figures.nodes_per_cycle or 1.0,
                len(figures.acceptance_by_depth),
                stages["draft"] + stages["recover"],
            )
        )
    return found


def _of_report(path: Path, option: str) -> list[_Measured]:
    """JSON: temperature → drafter → its ``policy``, and the figures of ``tasks``, of which ``all`` counts."""
    report, found = json.loads(read_text(path, f"{option}: {path}")), list[_Measured]()
    for temperature, drafters in report["temperatures"].items():
        for name, measured in drafters.items():
            figures = measured["tasks"]["all"]
            found.append(
                _Measured(
                    name,
                    measured["policy"],
                    float(temperature),
                    float(figures["pooled_mean_accepted_tokens"]),
                    float(figures["nodes_per_cycle"]),
                    len(figures["acceptance_by_depth"]),
                    figures["draft_ms_per_cycle"] / 1e3,
                )
            )
    return found
