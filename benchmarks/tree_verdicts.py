"""Speculative sampling: time and memory of one verification step on trees with branches.

    python benchmarks/tree_verdicts.py            # on the GPU if there is one, else on the CPU
    python benchmarks/tree_verdicts.py --quick    # a smoke run

Trees of WIDTHS, their children made in each of three ways: chosen, drawn with replacement, without. ``reference``,
``exact`` and ``sigmoid`` get the same logits and tokens in one process, turn by turn; on a GPU also ``by nodes``,
``exact`` without its kernels, in torch on the device, which waits for the host at every decision. A step begins with
what drawing leaves behind, as :mod:`benchmarks.support.sampling_rivals` has it: made laws for ``reference`` and, of
draws without replacement, for everybody; of draws with replacement the logits and each drawn token's q for the others.
Chosen tokens have no law. Figures are medians over steps of several sets of inputs; memory is that of a sampler's first
step, and so holds the laws that drawing leaves.

Prints a table (ratio first: the reference's time over the rival's) and writes ``results/tree_verdicts-<machine>.json``.
On a GPU it needs triton.

Legend: V vocabulary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# a checkout that is not installed will do
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "backends"))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "samplers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "verifiers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.sampling import FILTERED, SAMPLED, VOCABULARIES
from benchmarks.support import machine
from benchmarks.support.device_ops import device_ops
from benchmarks.support.sampling_rivals import peak_bytes
from benchmarks.support.timing import median_cpu, median_wall, own_clock
from spec_sdk.contracts import Request, Sampler, SamplingParams
from spec_sdk.contracts.request import RequestState
from spec_sdk.tree import DraftDistribution, DrawKind, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidSampler
from spec_sdk_verifiers.multi_step import MultiStep

ROOT = Path(__file__).parents[1]
SCHEMA_VERSION = 1
INPUT_SETS = 4
WIDTHS = (4, 2, 1, 1)
"""Children of every node, level by level."""
KINDS: tuple[DrawKind, ...] = ("chosen", "with_replacement", "without_replacement")


class TreeStep:
    """A tree of WIDTHS: logits of target and draft for every node, and children made from the draft's in one way."""

    def __init__(
        self,
        kind: DrawKind,
        vocabulary: int,
        dtype: torch.dtype,
        device: torch.device,
        params: SamplingParams,
        seed: int,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.kind = kind
        builder, level, drawn = TreeBuilder(0), [0], list[tuple[int, int]]()
        rows: dict[int, torch.Tensor] = {}
        self.q: dict[int, dict[int, float]] = {}
        for width in WIDTHS:
            children = []
            for node in level:
                rows[node] = (3 * torch.randn(vocabulary, generator=rng)).to(dtype)
                q_V = ReferenceSampler(None, params).probabilities(rows[node][None])[0]
                if kind == "chosen":
                    tokens = q_V.topk(width).indices.tolist()
                else:
                    tokens = torch.multinomial(q_V, width, kind == "with_replacement", generator=rng).tolist()
                drawn += [(node, token) for token in tokens]
                self.q[node] = {token: float(q_V[token]) for token in tokens}
                children += [builder.add(node, token, "chosen") for token in tokens]
            level = list(dict.fromkeys(children))
        self.drawn = drawn
        self.draft = {node: row_V.to(device) for node, row_V in rows.items()}
        place = builder.build().preorder
        target = 3 * torch.randn((builder.size, vocabulary), generator=rng)
        for node, row_V in rows.items():
            # so near that about two of three tokens are accepted
            target[place[node]] = row_V.float() + 0.9 * torch.randn(vocabulary, generator=rng)
        self.target = target.to(device, dtype)
        # by the sampler itself and not by its id, which a later one may get when it is gone
        self._left: dict[Sampler, dict[int, DraftDistribution]] = {}

    def by(self, sampler: Sampler, request: Request) -> object:
        laws = {} if self.kind == "chosen" else self.laws(sampler)
        builder = TreeBuilder(0)
        for node, token in self.drawn:
            builder.add(node, token, self.kind, laws.get(node))
        return MultiStep(None).verify_one(builder.build().tree, self.target, request).tokens

    def laws(self, sampler: Sampler) -> dict[int, DraftDistribution]:
        """What drawing with ``sampler`` leaves behind, the same for every step."""
        if sampler not in self._left:
            laws = self._left[sampler] = {node: sampler.law(row_V) for node, row_V in self.draft.items()}
            for node, law in laws.items():
                if self.kind == "with_replacement" and isinstance(sampler, ExactSampler):
                    law.known = self.q[node]
                else:
                    assert law.q_V is not None
        return self._left[sampler]


def rivals(steps: Sequence[TreeStep], params: SamplingParams, device: torch.device) -> dict[str, Callable[[], object]]:
    """Calls that decide one step after the other; samplers have never been used."""
    samplers: dict[str, Sampler] = {
        "reference": ReferenceSampler(None, params),
        "exact": ExactSampler(None, params),
        "sigmoid": SigmoidSampler(None, params),
    }
    if device.type == "cuda":
        samplers["by nodes"] = ExactSampler(ExactConfig("torch"), params)
    return {name: _next_step(steps, sampler, device) for name, sampler in samplers.items()}


def _next_step(steps: Sequence[TreeStep], sampler: Sampler, device: torch.device) -> Callable[[], object]:
    turn = itertools.cycle(steps)
    rng = torch.Generator().manual_seed(1)
    request = RequestState([0], 1, 1 << 30, sampler, rng, ops=device_ops(device)).view
    return lambda: next(turn).by(sampler, request)


def measure(
    kind: DrawKind, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seconds: float
) -> dict[str, Any]:
    steps = [TreeStep(kind, vocabulary, dtype, device, params, seed) for seed in range(INPUT_SETS)]
    differing = 0
    for step in steps:
        one = rivals([step], params, device)
        differing += one["reference"]() != one["exact"]()
    calls = rivals(steps, params, device)
    if device.type == "cuda":
        times = median_wall(calls, rounds=60)
    else:
        times = median_cpu(calls, seconds, clock=own_clock(device))
    return {
        "children": kind,
        "widths": WIDTHS,
        "nodes": steps[0].target.shape[0],
        "vocabulary": vocabulary,
        "dtype": str(dtype).removeprefix("torch."),
        "filters": "top-k 50, top-p 0.95" if params == FILTERED else None,
        "steps_compared": len(steps),
        "steps_in_which_exact_and_reference_differ": differing,
        "rivals": {
            name: {"seconds": times[name], "peak_bytes": peak_bytes(call, device)}
            for name, call in rivals(steps, params, device).items()
        },
    }


def lines(case: dict[str, Any]) -> list[str]:
    base = case["rivals"]["reference"]["seconds"]
    shape = f"{case['children']} V={case['vocabulary']} {case['dtype']} {case['filters'] or ''}"
    return [
        f"{base / one['seconds']:7.2f}  {name:12}{one['seconds'] * 1e6:10.0f} us"
        f"{one['peak_bytes'] / 2**20:9.2f} MiB  {shape}"
        for name, one in case["rivals"].items()
    ]


def aims(report: dict[str, Any]) -> list[dict[str, str]]:
    """``exact`` against each of the others, over the cases without filters."""
    plain = [case["rivals"] for case in report["cases"] if not case["filters"]]
    found = []
    for beside in (name for name in plain[0] if name != "exact"):
        shares = sorted(rivals["exact"]["seconds"] / rivals[beside]["seconds"] for rivals in plain)
        below = sum(share < 1 for share in shares)
        figure = f"faster in {below} of {len(shares)}, median {shares[len(shares) // 2]:.2f} of its time"
        found.append(
            {
                "aim": f"{report['device']}: exact is faster than {beside}",
                "result": "met" if below == len(shares) else "missed",
                "figure": f"{figure}, worst {shares[-1]:.2f}",
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: two small cases")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop beginning new cases after this")
    parser.add_argument("--each", type=float, default=2.0, help="seconds per case on the CPU")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "tree_verdicts",
        **machine.facts(device),
        "load": os.getloadavg(),
        "clock": "processor time" if own_clock(device) is time.thread_time else "wall time",
        "quick": arguments.quick,
        "cases": [],
        "left_out": [],
    }
    default = ROOT / "benchmarks" / "results" / f"tree_verdicts-{machine.slug(report['machine'])}.json"
    path = arguments.output or default
    first, second = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32, torch.bfloat16)
    plan = [(kind, V, first, SAMPLED) for V in VOCABULARIES for kind in KINDS]
    plan += [(kind, 128_256, second, SAMPLED) for kind in KINDS]
    plan += [("without_replacement", V, first, FILTERED) for V in VOCABULARIES]
    if arguments.quick:
        plan = [(KINDS[0], 1000, first, SAMPLED), (KINDS[2], 1000, second, FILTERED)]
    began = time.monotonic()
    print("  ratio  rival             time  peak memory  step (ratio: reference's time / the rival's)")
    for kind, vocabulary, dtype, params in plan:
        if time.monotonic() - began > arguments.seconds:
            report["left_out"].append(f"{kind} V={vocabulary} {dtype}: no time left of {arguments.seconds:.0f} s")
            continue
        each = 0.1 if arguments.quick else arguments.each
        report["cases"].append(measure(kind, vocabulary, dtype, device, params, each))
        print("\n".join(lines(report["cases"][-1])), flush=True)
    report["load_after"] = os.getloadavg()
    report["aims"] = aims(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
    for aim in report["aims"]:
        print(f"{aim['result']:18} {aim['aim']}: {aim['figure']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
