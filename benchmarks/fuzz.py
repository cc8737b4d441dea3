"""Command lines, checkpoints and directories of YAML that nobody means: none may trace back, hang or leave half a file.

    python -m benchmarks.fuzz --seconds 600 --state /tmp/fuzz
    python -m benchmarks.fuzz --state /tmp/fuzz --only checkpoint:17

Every case follows from the seed, its kind and its number. Cases run in forks of one process, as nobody where that is
root, with limits of time and memory. A run goes on where the last one with the same ``--state`` and ``--seed`` ended;
``--again`` runs those anew that failed. A case fails if its output has a traceback, its exit status is neither 0 nor 2,
it takes over its limit, a refusal is not one line, or it leaves half a file or unreadable results.

Writes results/fuzz.json.
"""

from __future__ import annotations

import argparse
import contextlib
import encodings
import importlib
import json
import os
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import torch

from benchmarks.fuzzing import checkpoints, command_lines, config_directories, material, trial
from benchmarks.places import RESULTS
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.reports import write_report
from spec_sdk.config.composing import settings_for
from spec_sdk.registry import Registry

KINDS: dict[str, tuple[int, Callable[[Random, material.Material, trial.Place], list[str]]]] = {
    "command": (10_000, command_lines.command_line),
    "checkpoint": (1_000, checkpoints.broken_checkpoint),
    "config": (1_000, config_directories.config_directory),
}
"""How many cases of each kind there are, and what makes one."""


WARMING = (
    [],
    ["pipeline=alspec_easyspec_tree", "chat=true"],
    ["pipeline=sd_chain", "sampling.temperature=1"],
    ["task=estimate"],
    ["--help"],
)


class Fuzzer:
    """The cases of one seed, in one directory: ``results.jsonl`` has a line for each that was run."""

    def __init__(self, state: Path, seed: int, worker: int = 0) -> None:
        self.seed = seed
        self._sound = material.made(state / "material")
        self._results = state / f"results-{seed}-{worker}.jsonl"
        self._place = trial.Place(state / f"case-{worker}", state / f"cache-{worker}")
        self._place.cache.mkdir(exist_ok=True)

    def warm_up(self) -> None:
        """Answer sound prompts, and import here what that imported: an interpreter may lie where nobody may read.

        Native kernels are compiled at the first of them, which takes minutes, and kept in the cache.
        """
        for more in WARMING:
            self._place.clear()
            sound = [f"model.target={self._sound.model('text')}", "prompt=a b c", "max_new_tokens=2", *more]
            outcome = trial.run(sound, self._place, warming=True)
            if outcome.status != 0:
                raise SystemExit(outcome.output)
            for name in (self._place.root / trial.MODULES).read_text().split():
                importlib.import_module(name)
        for encoding in pkgutil.iter_modules(encodings.__path__):
            with contextlib.suppress(ImportError):  # those of other systems
                importlib.import_module(f"encodings.{encoding.name}")
        for path in (self._place.cache, *self._place.cache.rglob("*")):
            path.chmod(0o777)

    def run(self, kind: str, number: int) -> dict[str, Any]:
        """Run one case; return its line of the results."""
        self._place.clear()
        rng = Random(f"{self.seed}/{kind}/{number}")
        arguments = KINDS[kind][1](rng, self._sound, self._place)
        outcome = trial.run(arguments, self._place)
        found = trial.faults(outcome, self._place)
        if found:
            for path in self._place.cache.rglob("*"):
                if any(part in path.name for part in trial.HALF_FILES):
                    path.rename(path.with_name(f"{path.name}.seen"))
        return {
            "case": f"{kind}:{number}",
            "status": outcome.status,
            "seconds": round(outcome.seconds, 2),
            "faults": found,
            "arguments": arguments if found else [],
            "output": outcome.output[-4000:] if found else outcome.output[-300:],
        }

    def keep(self, result: dict[str, Any]) -> None:
        """Add a line to the results."""
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


def kept(state: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The latest result of every case of a seed that was run."""
    lines = [line for path in sorted(state.glob(f"results-{seed}-*.jsonl")) for line in path.open(encoding="utf-8")]
    return {result["case"]: result for result in map(json.loads, lines)}


def cases(kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """All cases, those of the kinds in turn, so that a short run has as many of each."""
    for number in range(max(KINDS[kind][0] for kind in kinds)):
        yield from ((kind, number) for kind in kinds if number < KINDS[kind][0])


def report(state: Path, seed: int) -> dict[str, Any]:
    """What was run so far: counts by kind and exit status, and the faults that are left."""
    results = kept(state, seed)
    kinds = {}
    for kind, (count, _) in KINDS.items():
        own = [result for case, result in results.items() if case.startswith(f"{kind}:")]
        kinds[kind] = {
            "cases": count,
            "run": len(own),
            "by_status": dict(sorted(Counter(str(result["status"]) for result in own).items())),
            "longest_seconds": max((result["seconds"] for result in own), default=0),
            "failed": sorted(result["case"] for result in own if result["faults"]),
        }
    return {"seed": seed, **device_facts(torch.device("cpu")), "kinds": kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=Path("/tmp/spec-sdk-fuzz"), help="where results are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so long")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND:NUMBER", help="run these, and show their output")
    parser.add_argument("--again", action="store_true", help="run the cases anew that failed")
    parser.add_argument("--worker", type=int, default=0, help="of several at once: which one this is")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    options.state.mkdir(parents=True, exist_ok=True)
    fuzzer = Fuzzer(options.state, options.seed, options.worker)
    torch.set_num_threads(1)
    # everything that a case imports or reads once is there before the first fork
    Registry.discover()
    settings_for(["pipeline=alspec_easyspec_tree"])
    fuzzer.warm_up()
    if options.only:
        for case in options.only:
            kind, _, number = case.partition(":")
            result = fuzzer.run(kind, int(number))
            print(json.dumps({**result, "output": ""}), result["output"], sep="\n")
        return
    done = {case: result for case, result in kept(options.state, options.seed).items()}
    for number, (kind, i) in enumerate(cases(options.kinds)):
        before = done.get(f"{kind}:{i}")
        if number % options.workers != options.worker or (
            before is not None and not (options.again and before["faults"])
        ):
            continue
        if time.monotonic() - began > options.seconds:
            break
        result = fuzzer.run(kind, i)
        fuzzer.keep(result)
        if result["faults"]:
            print(result["case"], result["faults"], flush=True)
    write_report(RESULTS / "fuzz.json", report(options.state, options.seed))


if __name__ == "__main__":
    main()
