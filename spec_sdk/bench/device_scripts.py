"""Options of scripts that measure on a device without a pipeline: they need torch, and little of spec_sdk."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from spec_sdk.bench.machine import hardware_name, slug
from spec_sdk.bench.output_option import THE_JSON, add_output


def device_parser(
    doc: str | None,
    *,
    seconds: float | None = None,
    each: float | None = None,
    rounds: int | None = None,
    repeats: int | None = None,
) -> argparse.ArgumentParser:
    """A parser with ``--device``, ``--quick`` and ``--output``, and those options whose default is given.

    ``doc``: the script's docstring, of which the first line is shown.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default, help="default: %(default)s, as torch has")
    parser.add_argument("--quick", action="store_true", help="a smoke run: few small cases")
    add_output(parser, help_text=f"{THE_JSON}; default: by machine, beside earlier ones")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="begin no case after so long")
    if each is not None:
        parser.add_argument("--each", type=float, default=each, help="seconds per case on the CPU")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each variant, in turns")
    if repeats is not None:
        parser.add_argument("--repeats", type=int, default=repeats, help="calls in a row per measurement")
    return parser


def output_path(given: Path | None, directory: Path, benchmark: str, device: torch.device, *kinds: str) -> Path:
    """``given``, or the file of ``directory`` for this benchmark, machine and ``kinds`` of run, such as ``quick``."""
    kind = "".join(f"-{each}" for each in kinds if each)
    return given or directory / f"{benchmark}-{slug(hardware_name(device))}{kind}.json"
