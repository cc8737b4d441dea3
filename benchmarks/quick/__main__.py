"""A few ratios of this machine, beside those that were kept of its class: what moved beyond noise?

    python -m benchmarks.quick
    python -m benchmarks.quick --only passes samplers --keep

Pipelines beside plain decoding, greedy and sampled; passes of several nodes beside plain ones, and in other forms of
the weights; a draft's level; the fused sampler. Noise is estimated from repeats within the run, and from several kept
runs of one commit where there are any. Takes three minutes on two cores. ``--keep`` adds the run to
results/quick/<class of machine>.json, but for parts in which other programs were at work.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.places import RESULTS
from benchmarks.quick.parts import PARTS, Setting
from benchmarks.support.disturbance import DISTURBED, Others
from benchmarks.support.kept_ratios import KeptRatios, MachineClass, other_classes
from benchmarks.support.ratios import Compared, Ratio, compare
from spec_sdk.bench.machine import machine_facts
from spec_sdk.bench.scripts import build, run_script
from spec_sdk.errors import UserError
from spec_sdk.source_commit import source_commit
from spec_sdk.tables import print_table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--rounds", type=int, default=6, help="how often every prompt is answered; at least 2")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each comparison of passes or calls")
    parser.add_argument("--results", type=Path, default=RESULTS / "quick", help="directory of what is kept")
    parser.add_argument("--keep", action="store_true", help="add this run to what is kept")
    parser.add_argument("--strict", action="store_true", help="end with status 1 if a ratio is slower, or gone")
    parser.add_argument("overrides", nargs="*", default=["model.dtype=bfloat16"], help="options of spec_sdk")
    options = parser.parse_intermixed_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds: noise is known from repeats, so at least 2")
    vanilla = build("pipeline=vanilla", *options.overrides)
    machine = MachineClass.of(machine_facts(vanilla.backend.hardware), vanilla.dtype)
    try:
        kept = KeptRatios.read(options.results, machine)
    except UserError as error:
        parser.error(str(error))
    print(f"{machine}; {vanilla.backend.describe()}", flush=True)
    say_if_nothing_is_kept(kept, options.results)
    # now, before anybody changes a file
    of, setting = source_commit() or "unknown", Setting(options.rounds, options.seconds, tuple(options.overrides))
    now: dict[str, Ratio] = {}
    disturbed: list[str] = []
    for part in options.only:
        began, others = time.perf_counter(), Others()
        now |= {f"{part}: {name}": ratio for name, ratio in PARTS[part](setting).items()}
        share = others.share()
        disturbed += [part] * (share > DISTURBED)
        say_how_it_went(part, time.perf_counter() - began, share)
    compared = compare(now, kept.of_parts(options.only))
    show(compared)
    if options.keep:
        quiet = {name: ratio for name, ratio in now.items() if name.partition(":")[0] not in disturbed}
        kept.forget([one.name for one in compared if one.verdict == "gone"])
        kept.keep(quiet, of, datetime.now(UTC).isoformat(timespec="seconds"))
        if kept.runs:
            print(f"written: {kept.write(options.results)}")
        if disturbed:
            print(f"not kept, because others were at work: {', '.join(disturbed)}")
    worse = any(one.verdict in ("slower", "gone") for one in compared)
    return 1 if options.strict and worse else 0


def say_if_nothing_is_kept(kept: KeptRatios, directory: Path) -> None:
    """A line on stderr, which names the classes of machines that something is kept of."""
    if not kept.runs:
        others = other_classes(directory, kept.machine)
        only = f", only of {', '.join(others)}: not compared" if others else ""
        print(f"nothing is kept of this class of machine{only}; --keep keeps this run", file=sys.stderr)


def say_how_it_went(part: str, seconds: float, others: float) -> None:
    """A line on stderr for a part that is done."""
    disturbed = f"; other programs had {others:.0%} of the cores: noise is larger" if others > DISTURBED else ""
    print(f"{part}: {seconds:.0f} s{disturbed}", file=sys.stderr, flush=True)


def show(compared: Sequence[Compared]) -> None:
    """A row for each ratio, and in a line what moved."""

    def row(one: Compared) -> list[str]:
        now, kept = ("–" if ratio is None else f"{ratio.value:.2f}" for ratio in (one.now, one.kept))
        change = "–" if one.change is None else f"{one.change:+.1%}"
        noise = "–" if one.noise is None else f"± {one.noise:.1%}"
        return [one.name, now, kept, change, noise, one.verdict if one.verdict != "within noise" else ""]

    print_table("", ["times as fast", "now", "kept", "change", "noise", ""], map(row, compared), file=sys.stdout)
    moved = [one for one in compared if one.verdict in ("faster", "slower")]
    known = sum(one.change is not None for one in compared)
    print(f"{len(moved)} of {known} moved beyond noise" + "".join(f"; {one.name}: {one.verdict}" for one in moved))


if __name__ == "__main__":
    sys.exit(run_script(main))
