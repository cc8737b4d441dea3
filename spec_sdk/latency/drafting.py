"""What a drafter would give on a GPU: its measured acceptance, and the time that its passes' weights take to be read.

Decoding one request is bound by memory: a pass takes the bytes of its weights over the bandwidth that is reached, and
rows of a tree cost nothing until their products take longer (Leviathan et al. 2023, arXiv:2211.17192, §3.4, with the
times of passes for costs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.errors import UserError

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
    """What ``benchmarks.drafters`` wrote: a row per temperature and drafter, over all tasks; and the names of drafters
    of which the table knows no weights.

    Raises UserError, naming ``option``, for a file that cannot be read or is another one.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        temperatures = report["temperatures"].items()
        found, unknown = list[Drafting](), list[str]()
        for temperature, drafters in temperatures:
            for name, tasks in drafters.items():
                pipeline, figures = name.split()[0], tasks["all"]
                if table.parameters.get(pipeline) and "policy=" in name:
                    continue  # by this machine's prices it paused where another would draft
                if pipeline in table.parameters:
                    found.append(_measured(pipeline, float(temperature), figures, table.parameters[pipeline]))
                elif pipeline != "vanilla" and name not in unknown:
                    unknown.append(name)
    except OSError as error:
        raise UserError(f"{option}: {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{option}: {path} is no report of python -m benchmarks.drafters") from error
    return found, unknown


def _measured(name: str, temperature: float, figures: Mapping[str, Any], parameters: float) -> Drafting:
    depths: Sequence[float] = figures["acceptance_by_depth"]
    return Drafting(
        name,
        temperature,
        float(figures["pooled_mean_accepted_tokens"]),
        float(figures["nodes_per_cycle"]),
        # drafters with a model draft to the same depth in every cycle; the others make no passes
        len(depths) if parameters else 0,
        parameters,
        0.0 if parameters else figures["draft_ms_per_cycle"] / 1e3,
    )
