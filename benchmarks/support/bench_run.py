"""``task=bench`` called by a script, which computes from its records what the task's own tables do not have."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from spec_sdk.app import main as run_command
from spec_sdk.bench.reading import BenchRun, read_bench


def run_bench(
    pipelines: Sequence[str], temperatures: Sequence[float], options: Sequence[str], directory: Path | None
) -> BenchRun:
    """The records of ``pipelines``, as ``task.pipelines`` names them, beside plain decoding.

    ``directory``: kept, and gone on with where an earlier run of the same options was cut off; None: a temporary one.
    Raises SystemExit with the task's status where it is not 0.
    """
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spec-sdk-bench-")))
        chosen = [
            f"task.pipelines={json.dumps(list(pipelines))}",
            f"task.temperatures={json.dumps(list(temperatures))}",
        ]
        if status := run_command(["task=bench", *chosen, f"output_dir={directory}", *options]):
            raise SystemExit(status)
        return read_bench(directory)
