"""What the host adds to a cycle whose pass a device makes, measured without such a device.

    python -m benchmarks.host_time
    python -m benchmarks.host_time --before f6c072d

Passes are computed on the CPU, and that time is left out; instead a pretended device is busy for ``--pass-ms`` with
each pass, in their order, and whoever reads from it waits until it has come so far. What a cycle takes beyond its pass
is then the host's part that no pass hides: verdict, commit, events, text, the next draft, the next pass's inputs.
Measured are the default model, read as :meth:`Engine.stream` gives it; a tiny one with the engine's loop alone
under trees that cost nothing to draft; and tiny ones whose draft model or head is on the device too, where coins accept
four of five drafted tokens. Python is timed where it runs: caches that a GPU's host would keep
warm are cold here behind every pass of the default model.

``--before``: an earlier commit, checked out into a worktree of git's; both take turns, a process each. Writes
results/host_time.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.random_head import read_by_head, write_random_head
from benchmarks.gpu.random_model import Model, cycles
from benchmarks.gpu.speedups import PIPELINES as SPEEDUPS
from benchmarks.gpu.speedups import by_coins, model_of
from benchmarks.places import RESULTS
from spec_sdk import Engine
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.random_models import random_decoder
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script
from spec_sdk.contracts import Verifier
from spec_sdk.model.draft_heads.head import CapturedHeadExecutor, DraftHeadExecutor
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import GraphExecutor, changed, tensors_of_output
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import StepClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops, host_reads

FIXED = ("policy=fixed", "policy.depth=5", "policy.max_nodes=16")
PIPELINES: dict[str, tuple[str, Sequence[str]]] = {
    "vanilla": ("vanilla", ()),
    "suffix": ("suffix", FIXED),
    "mixed": ("mixed", FIXED),
    # the curve of costs would be this machine's, and not the device's
    "suffix as it starts": ("suffix", ("policy.costs=learn",)),
}
PROMPT = "Write a Python class for a stack with push, pop and peek, then one for a queue with the same methods."
TREES = (1, 8, 64)
ACCEPTED = 0.8
WARM_UP = 8
"""Cycles before the first that counts."""


class PretendedDevice(StepClock):
    """Makes passes one after the other, in ``pass_s`` seconds each, or so many of their own. Its clock stands still
    while the CPU computes them.

    ``waited_s``: what readers waited for it. ``passes``: how many it was given, which take ``passes_s`` seconds.
    """

    def __init__(self, pass_s: float) -> None:
        self.pass_s = pass_s
        self.passes = 0
        self.passes_s = 0.0
        self.waited_s = 0.0
        self._computing_s = 0.0
        self._busy_until = 0.0

    @property
    def now(self) -> float:
        return time.perf_counter() - self._computing_s + self.waited_s

    def mark(self) -> float:
        return max(self.now, self._busy_until)

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def capture(
        self, run: Callable[[], PassOutput], own_s: float | None = None
    ) -> tuple[Callable[[], object], PassOutput]:
        """A :data:`~spec_sdk.model.graph_executor.Capture` whose passes it is busy with, for ``own_s`` seconds each."""
        pass_s = self.pass_s if own_s is None else own_s
        output = changed(run(), torch.clone)

        def replay() -> None:
            began = time.perf_counter()
            following = iter(tensors_of_output(run()))
            changed(output, lambda place: place.copy_(next(following)))
            self._computing_s += time.perf_counter() - began
            self._busy_until = self.mark() + pass_s
            self.passes += 1
            self.passes_s += pass_s

        return replay, output

    def wait(self) -> None:
        """Until it has made all passes that it was given."""
        self.wait_until(self._busy_until)

    def wait_until(self, moment: float) -> None:
        self.waited_s += max(0.0, moment - self.now)

    def is_read(self) -> None:
        """Have whoever reads tensors from now on wait for what this device was given before."""
        device = self

        class Begun(host_reads.BegunRead):
            def __init__(self, tensor: torch.Tensor) -> None:
                self._host, self._arrival, self._until = tensor, None, device._busy_until

            def wait(self) -> torch.Tensor:
                device.wait_until(self._until)
                return super().wait()

        def on_its_way(tensor: torch.Tensor) -> torch.Tensor:
            device.wait()
            return tensor

        host_reads._on_its_way = on_its_way
        host_reads.begin = Begun


def timed(device: PretendedDevice, steps: Iterator[Sequence[int]], most: int) -> dict[str, float]:
    """What ``most`` steps take beyond their passes, or those that there are, behind :data:`WARM_UP` of them; and what
    a token takes.
    """
    for _ in range(WARM_UP):
        next(steps)
    device.wait()
    began, passes, passes_s, count, tokens = device.now, device.passes, device.passes_s, 0, 0
    for new in steps:
        count += 1
        tokens += len(new)
        if count == most:
            break
    device.wait()
    seconds, made = device.now - began, device.passes - passes
    host_s = seconds - (device.passes_s - passes_s)
    return {"steps": count, "passes": made, "host_us": 1e6 * host_s / count, "token_ms": 1e3 * seconds / tokens}


@torch.no_grad()
def of_tree(nodes: int, pass_s: float, most: int) -> dict[str, float]:
    """The engine's loop on a tiny model, with a tree that costs nothing to draft."""
    device, ops = PretendedDevice(pass_s), Ops()
    device.is_read()
    decoder = random_decoder("tiny", torch.device("cpu"), torch.float32, ops)
    session = Session(GraphExecutor(decoder, ops, device.capture))
    prompt = [random.Random(0).randrange(decoder.vocabulary) for _ in range(64)]
    session.prefill(0, prompt[:-1])
    model = Model(session, prompt, decoder.vocabulary, 0, lambda: None, device)
    return timed(device, cycles(model, nodes, most + WARM_UP + 1), most)


def put_on(device: PretendedDevice, session: Session, own_s: float | None = None) -> None:
    """Have the device make the session's passes, in ``own_s`` seconds each, or in its own."""
    executor, capture = session.executor, functools.partial(device.capture, own_s=own_s)
    assert isinstance(executor, TorchExecutor)
    captured: TorchExecutor = (
        CapturedHeadExecutor(executor.head, executor.ops, capture)
        if isinstance(executor, DraftHeadExecutor)
        else GraphExecutor(executor.decoder, executor.ops, capture)
    )
    session.executor, session.cache = captured, captured.new_cache()


def of_pipeline(name: str, pass_s: float, most: int) -> dict[str, float]:
    """An answer of the default model, part by part, as a program reads it."""
    device = PretendedDevice(pass_s)
    device.is_read()
    pipeline, overrides = PIPELINES[name]
    engine = Engine.from_pipeline(pipeline, overrides=overrides)
    tokens = engine.pipeline.engine
    put_on(device, tokens.target)
    tokens.scheduler._clock = device
    # captures are made in the first answer
    list(engine.stream(PROMPT, max_new_tokens=most))
    return timed(device, (part.tokens for part in engine.stream(PROMPT, max_new_tokens=most)), most)


def of_drafter(name: str, pass_s: float, draft_s: float, most: int) -> dict[str, float]:
    """An answer of a tiny model whose drafter's passes, or trees at once, take the device ``draft_s`` each."""
    device = PretendedDevice(pass_s)
    device.is_read()
    cpu, (pipeline, *own) = torch.device("cpu"), SPEEDUPS[name]
    model = model_of("tiny", cpu, torch.float32)
    with tempfile.TemporaryDirectory(prefix="spec-sdk-") as directory:
        write_random_head(Path(directory), "tiny", cpu, torch.float32)
        head = [f"drafter.checkpoint={directory}", f"drafter.target_layers={read_by_head('tiny')}"]
        overrides = [*own, *(head if pipeline.startswith("eagle") else ()), "model.dtype=float32"]
        engine = Engine.from_pipeline(pipeline, target=model, draft=model, overrides=overrides)
    tokens = engine.pipeline.engine
    drafter: Any = tokens.drafter
    put_on(device, tokens.target)
    put_on(device, drafter.session, draft_s)
    tokens.scheduler._clock = device
    prompt, room = " ".join(f"w{token}" for token in range(1, 64)), 8 * (most + WARM_UP)
    with mock.patch.object(Verifier, "decided", by_coins(ACCEPTED, 0)):
        list(engine.stream(prompt, max_new_tokens=room, ignore_eos=True))
        parts = engine.stream(prompt, max_new_tokens=room, ignore_eos=True)
        return timed(device, (part.tokens for part in parts), most)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    pass_s = 1e-3 * options.pass_ms
    found = {f"tree of {nodes}": of_tree(nodes, pass_s, options.steps) for nodes in TREES}
    draft_s = 1e-3 * options.draft_ms
    found |= {f"{name}, on the device": of_drafter(name, pass_s, draft_s, options.steps) for name in SPEEDUPS}
    return found | {name: of_pipeline(name, pass_s, options.steps) for name in PIPELINES}


def compared(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What processes of this tree, and of the earlier commit by turns, measure by this script."""
    # an earlier commit, whose process runs this script too, need not have it
    from benchmarks.support.earlier_commit import by_turns, this_tree_and

    arguments = [__file__, "--worker", f"--pass-ms={options.pass_ms}", f"--draft-ms={options.draft_ms}"]
    arguments.append(f"--steps={options.steps}")
    with this_tree_and(options.before) as trees:
        return by_turns(trees, options.rounds, arguments)


def run(options: argparse.Namespace) -> int:
    if options.worker:
        print(json.dumps(measured(options)))
        return 0
    rounds = compared(options)
    report = {
        **device_facts(torch.device("cpu")),
        "pass_ms": options.pass_ms,
        "draft_ms": options.draft_ms,
        "before": options.before,
        "cases": {
            case: {
                name: {key: statistics.median(made[case][key] for made in of_tree) for key in of_tree[0][case]}
                for name, of_tree in rounds.items()
            }
            for case in rounds["now"][0]
        },
    }
    write_report(options.output, report)
    for case, by_tree in report["cases"].items():
        figures = ", ".join(
            f"{name} {found['host_us']:.0f} us a step, {found['token_ms']:.2f} ms a token"
            for name, found in by_tree.items()
        )
        print(f"{case}: the host's part that no pass hides: {figures}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pass-ms", type=float, default=4.4, help="what the pretended device takes for a pass")
    parser.add_argument("--draft-ms", type=float, default=1.8, help="what it takes for a draft's pass or whole tree")
    parser.add_argument("--steps", type=int, default=200, help="that are timed of each case, at most")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each commit, by turns")
    parser.add_argument("--before", help="an earlier commit to measure beside this tree")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_output(parser, RESULTS / "host_time.json")
    options = parser.parse_args(arguments)
    return run_script(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
