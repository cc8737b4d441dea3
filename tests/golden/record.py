"""Records the golden runs: ``python -m tests.golden.record`` writes tests/golden/engine.json.

Only for a change of the engine that is meant to change tokens or events.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from tests.golden.cases import CASES
from tests.golden.engine import run_case, write_model

GOLDEN = Path(__file__).parent / "engine.json"


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory)
        write_model(checkpoint)
        answers = {name: run_case(checkpoint, overrides) for name, overrides in CASES.items()}
    # a line per answer, so that a diff shows what changed
    cases = (
        f"{json.dumps(name)}: [\n " + ",\n ".join(json.dumps(answer, separators=(",", ":")) for answer in of_case) + "]"
        for name, of_case in answers.items()
    )
    GOLDEN.write_text("{\n" + ",\n".join(cases) + "\n}\n")
    for name, of_case in answers.items():
        accepted = sum(cycle[5] for answer in of_case for cycle in answer["cycles"])
        steps = sum(len(answer["cycles"]) for answer in of_case)
        print(f"{name}: {steps} cycles, {accepted} accepted, {[answer['finish_reason'] for answer in of_case]}")


if __name__ == "__main__":
    main()
