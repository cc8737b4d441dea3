"""The part of ``task=estimate`` that is about drafters: tokens per second on GPUs from measured acceptance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spec_sdk.files import expanded, write_json
from spec_sdk.latency.drafting import GPUTable, measured_drafters
from spec_sdk.tables import number, print_table

RESULT = "drafters_estimate.json"


def estimate_drafters(report: str, output_dir: Path) -> None:
    """Print the table for the drafters of a run of ``task=bench``, and write it to ``output_dir``."""
    table = GPUTable.shipped()
    found, unknown = measured_drafters(expanded(report, "task.drafters"), table, "task.drafters")
    rows, kept = list[list[str]](), list[dict[str, Any]]()
    for drafting in (*found, *table.assumed):
        speeds = {device.name: table.speed(device, drafting) for device in table.devices}
        told = "assumed" if drafting.temperature is None else f"T = {drafting.temperature:g}"
        rows.append(
            [
                drafting.name,
                told,
                number(drafting.mean_accepted_tokens, 2),
                number(drafting.nodes, 1),
                str(drafting.levels),
                f"{1e3 * drafting.host_s:.2f}",
                *(f"{speed.drafted:.0f} ({speed.speedup:.2f}x)" for speed in speeds.values()),
            ]
        )
        kept.append(
            {
                **vars(drafting),
                "devices": {n: {"tokens_per_second": s.drafted, "speedup": s.speedup} for n, s in speeds.items()},
            }
        )
    plain = {device.name: table.speed(device, table.assumed[0]).plain for device in table.devices}
    speeds_of_plain = ", ".join(f"{name} {speed:.0f} tok/s" for name, speed in plain.items())
    columns = ["drafter", "measured", "MAT", "rows", "levels", "host ms", *plain]
    print_table(f"{table.title}; plain decoding: {speeds_of_plain}", columns, rows, file=sys.stdout)
    for name in unknown:
        print(f"note: {name}: the table has no weights of such a drafter; it is left out", file=sys.stderr)
    output_dir.mkdir(parents=True, exist_ok=True)
    write_json(output_dir / RESULT, {"title": table.title, "plain_tokens_per_second": plain, "drafters": kept})
    print(f"results in {output_dir}", file=sys.stderr)
