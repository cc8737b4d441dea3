"""Peak resident memory that one attention call adds on the CPU, measured in a process of its own.

    python -m benchmarks.support.attention_memory ours 4096

prints one JSON line: bytes by which the process grew during the call, and bytes of mask that were made before it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HEADS, HEAD_DIM, PREFIX = 10, 64, 10


def measure_in_child(rival: str, nodes: int) -> dict[str, Any]:
    """Runs this module in a fresh process. Raises ``RuntimeError`` with its last words if it fails."""
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.support.attention_memory", rival, str(nodes)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(places)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"peak memory of {rival} at {nodes} nodes: {done.stderr.strip()[-300:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main(rival: str, nodes: int) -> None:
    import torch

    from benchmarks.support.attention_inputs import Inputs, Shape, nbytes
    from benchmarks.support.cpu_rivals import explicit_mask_rival, our_mask, our_rival
    from spec_sdk.bench.memory import forget_resident_peak, resident_peak

    torch.set_grad_enabled(False)

    def prepared(size: int) -> tuple[Any, int]:
        it = Inputs.make(Shape(1, HEADS, HEADS, HEAD_DIM, size, PREFIX, "float32"), torch.device("cpu"), one_tree=True)
        if rival == "ours":
            return our_rival(it, our_mask(it)), nbytes(it.end_BN)
        visible_B1NS = it.visible_B1NS()
        return explicit_mask_rival(it, visible_B1NS), nbytes(visible_B1NS)

    # code, threads and their stacks are loaded before the first reading
    prepared(64)[0]()
    call, mask_bytes = prepared(nodes)
    before = forget_resident_peak()
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out = call()
    after = resident_peak() if before is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    grown = max(0, after - (high if before is None else before))
    by = "VmHWM" if before is not None else "ru_maxrss"
    print(json.dumps({"call_bytes": grown, "output_bytes": nbytes(out), "mask_bytes": mask_bytes, "read_from": by}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
