"""Speculative sampling: time and memory of one verification step on a chain of γ drafted tokens, or on a tree.

    python benchmarks/sampling.py            # on the GPU if there is one, else on the CPU
    python benchmarks/sampling.py --tree     # trees of four levels with branches, drawn in each way
    python benchmarks/sampling.py --quick    # a smoke run

Rivals get the same logits and tokens in one process, turn by turn; figures are medians over steps of several sets of
inputs:

- ``transformers``: ``transformers.generation.utils._speculative_sampling``, as its assisted generation calls it;
- ``reference``: our definition, with the drafter's softmax of γ rows, which it also needs;
- ``exact``: the fused sampler, which gives the reference's tokens for the same random numbers;
- ``sigmoid``: the approximation of "Optimized speculative sampling", α = -1e4, β = 1e4;
- ``by nodes``, trees on a GPU: ``exact`` without its kernels, in torch on the device, which waits at every decision.

On trees there is no transformers' function. Laws of draws without replacement are made before the clock starts, as a
drafter needs them to draw; laws of draws with replacement count as on a chain; chosen tokens have none.

Prints a table (ratio first: transformers' time over the rival's, on trees the reference's), writes
``results/sampling-<machine>.json`` (``sampling-trees-…``) and a plot beside it, and says last which aims are met. Needs
``pip install 'spec-sdk[benchmarks]'``, on a GPU also triton.

Legend: G = γ drafted tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

# a checkout that is not installed will do
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "samplers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "verifiers"))
sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.support import machine
from benchmarks.support.timing import median_cpu, median_cuda
from spec_sdk.contracts import Request, Sampler, SamplingParams
from spec_sdk.tree import DrawKind, TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidSampler
from spec_sdk_verifiers.chain_rejection import ChainRejection
from spec_sdk_verifiers.multi_step import MultiStep

ROOT = Path(__file__).parents[1]
SCHEMA_VERSION = 1
GAMMAS = (1, 2, 3, 5, 8, 10, 15, 20)
VOCABULARIES = (32_000, 49_152, 128_256, 262_144)
SAMPLED = SamplingParams(temperature=1.0)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)
INPUT_SETS, TREE_SETS = 8, 4
RIVALS = ("transformers", "reference", "exact", "sigmoid")
WIDTHS = (4, 2, 1, 1)
"""Children of every node, level by level, of the trees."""
KINDS: tuple[DrawKind, ...] = ("chosen", "with_replacement", "without_replacement")


class Step:
    """One set of inputs: logits of target and draft, and tokens drawn from the draft's law."""

    def __init__(
        self, gamma: int, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seed: int
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        target = 3 * torch.randn((gamma + 1, vocabulary), generator=rng)
        # so near that about two of three tokens are accepted
        draft = target[:-1] + 0.9 * torch.randn((gamma, vocabulary), generator=rng)
        self.target, self.draft = target.to(device, dtype), draft.to(device, dtype)
        q_GV = ReferenceSampler(None, params).probabilities(draft.to(dtype))
        self.tokens: list[int] = torch.multinomial(q_GV, 1, generator=rng)[:, 0].tolist()
        self.ids = torch.tensor([self.tokens], device=device)

    def by_transformers(self) -> object:
        from transformers.generation.utils import _speculative_sampling

        tokens, _ = _speculative_sampling(self.ids, self.draft[None], len(self.tokens), self.target[None])
        # the caller reads what was decided
        return tokens.tolist()

    def by(self, sampler: Sampler, request: Request) -> object:
        """The whole step of a drafter's laws and a verifier's decision."""
        if type(sampler) is ReferenceSampler:
            # the drafter's softmax of each row, kept until the verdict
            laws = [sampler.probabilities(self.draft[i : i + 1])[0].cpu() for i in range(len(self.tokens))]
        else:
            laws = [sampler.law(row_V) for row_V in self.draft]
        return ChainRejection(None).verify(self.tree(laws), self.target, request).tokens

    def tree(self, laws: list[Any]) -> TokenTree:
        tree, node = TreeBuilder(0), 0
        for token, law in zip(self.tokens, laws, strict=True):
            node = tree.add(node, token, "with_replacement", law)
        return tree.build().tree


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
        self._made: dict[int, dict[int, Any]] = {}

    def by(self, sampler: Sampler, request: Request) -> object:
        laws: dict[int, Any] = {}
        if self.kind == "with_replacement":
            laws = self.laws(sampler)
        elif self.kind == "without_replacement":
            if id(sampler) not in self._made:
                self._made[id(sampler)] = self.laws(sampler)
                for law in self._made[id(sampler)].values():
                    _ = law.q_V if hasattr(law, "q_V") else law
            laws = self._made[id(sampler)]
        builder = TreeBuilder(0)
        for node, token in self.drawn:
            builder.add(node, token, self.kind, laws.get(node))
        return MultiStep(None).verify(builder.build().tree, self.target, request).tokens

    def laws(self, sampler: Sampler) -> dict[int, Any]:
        if type(sampler) is ReferenceSampler:
            return {node: sampler.probabilities(row_V[None])[0].cpu() for node, row_V in self.draft.items()}
        return {node: sampler.law(row_V) for node, row_V in self.draft.items()}


def tree_rivals(steps: list[TreeStep], params: SamplingParams, device: torch.device) -> dict[str, Callable[[], object]]:
    samplers: dict[str, Sampler] = {
        "reference": ReferenceSampler(None, params),
        "exact": ExactSampler(None, params),
        "sigmoid": SigmoidSampler(None, params),
    }
    if device.type == "cuda":
        samplers["by nodes"] = ExactSampler(ExactConfig("torch"), params)
    calls = {}
    for name, sampler in samplers.items():
        request = Request([0], 1, 1 << 30, sampler, torch.Generator().manual_seed(1))
        calls[name] = _next_step(cycle(steps), sampler, request)
    return calls


def rivals(steps: list[Step], params: SamplingParams) -> dict[str, Callable[[], object]]:
    samplers: dict[str, Sampler] = {
        "reference": ReferenceSampler(None, params),
        "exact": ExactSampler(None, params),
        "sigmoid": SigmoidSampler(None, params),
    }
    calls: dict[str, Callable[[], object]] = {}
    if params == SAMPLED:
        turn = cycle(steps)
        calls["transformers"] = lambda: next(turn).by_transformers()
    for name, sampler in samplers.items():
        request = Request([0], 1, 1 << 30, sampler, torch.Generator().manual_seed(1))
        calls[name] = _next_step(cycle(steps), sampler, request)
    return calls


def _next_step(turn: Any, sampler: Sampler, request: Request) -> Callable[[], object]:
    return lambda: next(turn).by(sampler, request)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors that the call holds at once, beyond its inputs."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    changes = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure_tree(
    kind: DrawKind, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seconds: float
) -> dict[str, Any]:
    steps = [TreeStep(kind, vocabulary, dtype, device, params, seed) for seed in range(TREE_SETS)]
    differing = 0
    for step in steps:
        one = tree_rivals([step], params, device)
        differing += one["reference"]() != one["exact"]()
    calls = tree_rivals(steps, params, device)
    times = median_cuda(calls, rounds=60)[1] if device.type == "cuda" else median_cpu(calls, seconds)
    return {
        "tree": kind,
        "widths": WIDTHS,
        "nodes": steps[0].target.shape[0],
        **_facts(vocabulary, dtype, params, len(steps), differing),
        "rivals": {
            name: {"seconds": times[name], "peak_bytes": peak_bytes(call, device)}
            for name, call in tree_rivals(steps, params, device).items()
        },
    }


def _facts(vocabulary: int, dtype: torch.dtype, params: SamplingParams, steps: int, differing: int) -> dict[str, Any]:
    return {
        "vocabulary": vocabulary,
        "dtype": str(dtype).removeprefix("torch."),
        "filters": "top-k 50, top-p 0.95" if params == FILTERED else None,
        "steps_compared": steps,
        "steps_in_which_exact_and_reference_differ": differing,
    }


def measure(
    gamma: int, vocabulary: int, dtype: torch.dtype, device: torch.device, params: SamplingParams, seconds: float
) -> dict[str, Any]:
    steps = [Step(gamma, vocabulary, dtype, device, params, seed) for seed in range(INPUT_SETS)]
    calls = rivals(steps, params)
    # rounding may move a border between two of 262,144 tokens; tests/samplers judges each such token in float64
    differing = 0
    for step in steps:
        one = rivals([step], params)
        differing += one["reference"]() != one["exact"]()
    if device.type == "cuda":
        # each of these calls waits for its verdict, so the time of a call is the time of a step
        _, times = median_cuda(calls, rounds=60)
    else:
        times = median_cpu(calls, seconds)
    return {
        "gamma": gamma,
        **_facts(vocabulary, dtype, params, len(steps), differing),
        "needed_bytes": (2 * gamma + 1) * vocabulary * dtype.itemsize,
        # samplers that have never been used: rows that they keep from step to step count as well
        "rivals": {
            name: {"seconds": times[name], "peak_bytes": peak_bytes(call, device)}
            for name, call in rivals(steps, params).items()
        },
    }


def lines(case: dict[str, Any]) -> list[str]:
    base = case["rivals"].get("transformers") or case["rivals"]["reference"]
    shape = f"{_drafted(case)} V={case['vocabulary']} {case['dtype']} {case['filters'] or ''}"
    return [
        f"{base['seconds'] / one['seconds']:7.2f}  {name:14}{one['seconds'] * 1e6:10.0f} us"
        f"{one['peak_bytes'] / 2**20:9.2f} MiB  {shape}"
        for name, one in case["rivals"].items()
    ]


def _drafted(case: dict[str, Any]) -> str:
    return str(case["tree"]) if "tree" in case else f"γ={case['gamma']}"


def aims(report: dict[str, Any]) -> list[dict[str, str]]:
    plain = [case for case in report["cases"] if not case["filters"]]

    def share(case: dict[str, Any], name: str, beside: str) -> float:
        return float(case["rivals"][name]["seconds"] / case["rivals"][beside]["seconds"])

    def judged(name: str, beside: str, cases: list[dict[str, Any]]) -> tuple[str, str]:
        shares = sorted((share(case, name, beside), _drafted(case), case["vocabulary"]) for case in cases)
        worst, median = shares[-1], shares[len(shares) // 2][0]
        below = sum(value < 1 for value, *_ in shares)
        figure = f"faster in {below} of {len(shares)}, median {median:.2f} of its time, worst {worst[0]:.2f} "
        return ("met" if worst[0] < 1 else "missed"), figure + f"at {worst[1]} V={worst[2]}"

    found = []
    rivals_of_exact = [
        name for name in ("reference", "sigmoid", "transformers", "by nodes") if name in plain[0]["rivals"]
    ]
    for name, beside in (("exact", beside) for beside in rivals_of_exact):
        result, figure = judged(name, beside, plain)
        found.append({"aim": f"{report['device']}: {name} is faster than {beside}", "result": result, "figure": figure})
    if "tree" in plain[0]:
        return found
    asked = [case for case in plain if (case["gamma"], case["vocabulary"]) == (5, 128_256)]
    aim = "GPU: exact at least 95 % below transformers per step at V = 128,256, γ = 5"
    if report["device"] == "cuda" and asked:
        worst = max(share(case, "exact", "transformers") for case in asked)
        found.append({"aim": aim, "result": "met" if worst <= 0.05 else "missed", "figure": f"{1 - worst:.1%} below"})
    else:
        found.append({"aim": aim, "result": "not measured here", "figure": "needs an NVIDIA GPU"})
    aim = "GPU: within 2x of reading the needed logits once, or of a kernel launch"
    found.append({"aim": aim, "result": "not measured here", "figure": "see needed_bytes of each case"})
    return found


def plot(report: dict[str, Any], path: Path) -> str | None:
    """Time per step over γ, one panel a vocabulary. Returns why there is none, or None when it is written."""
    if "tree" in report["cases"][0]:
        return "trees are a table"
    try:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot
    except ImportError:
        return "matplotlib is not installed (pip install 'spec-sdk[benchmarks]')"
    matplotlib.rcParams["svg.hashsalt"] = "spec-sdk"
    cases = [case for case in report["cases"] if not case["filters"] and case["dtype"] == report["cases"][0]["dtype"]]
    sizes = sorted({case["vocabulary"] for case in cases})
    figure, axes = pyplot.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 3.8), layout="constrained", squeeze=False)
    for size, axis in zip(sizes, axes[0], strict=True):
        for name in RIVALS:
            points = [(c["gamma"], c["rivals"][name]["seconds"] * 1e3) for c in cases if c["vocabulary"] == size]
            axis.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
        axis.set(yscale="log", xlabel="drafted tokens γ", ylabel="ms per step", title=f"V = {size:,}")
    axes[0][0].legend()
    figure.suptitle(f"{report['machine']}, {report['cases'][0]['dtype']}")
    figure.savefig(path, metadata={"Date": None})
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run: two small cases")
    parser.add_argument("--tree", action="store_true", help="trees with branches in place of chains")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop beginning new cases after this")
    parser.add_argument("--each", type=float, default=2.0, help="seconds per case on the CPU")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "sampling of trees" if arguments.tree else "sampling",
        **machine.facts(device),
        "load": os.getloadavg(),
        "quick": arguments.quick,
        "cases": [],
        "left_out": [],
    }
    name = f"sampling-{'trees-' if arguments.tree else ''}{machine.slug(report['machine'])}.json"
    path = arguments.output or ROOT / "benchmarks" / "results" / name
    first, second = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32, torch.bfloat16)
    plan: list[tuple[Any, int, torch.dtype, SamplingParams]]
    if arguments.tree:
        plan = [(kind, V, first, SAMPLED) for V in VOCABULARIES for kind in KINDS]
        plan += [(kind, 128_256, second, SAMPLED) for kind in KINDS]
        plan += [("without_replacement", V, first, FILTERED) for V in VOCABULARIES]
    else:
        plan = [(5, V, first, SAMPLED) for V in VOCABULARIES]
        plan += [(gamma, V, first, SAMPLED) for gamma in GAMMAS if gamma != 5 for V in VOCABULARIES]
        plan += [(5, V, second, SAMPLED) for V in VOCABULARIES] + [(5, V, first, FILTERED) for V in VOCABULARIES]
    if arguments.quick:
        plan = [(plan[0][0], 1000, first, SAMPLED), (plan[-1][0], 1000, second, FILTERED)]
    began = time.monotonic()
    print("  ratio  rival               time  peak memory  step (ratio: the first rival's time / this one's)")
    for drafted, vocabulary, dtype, params in plan:
        if time.monotonic() - began > arguments.seconds:
            report["left_out"].append(f"{drafted} V={vocabulary} {dtype}: no time left of {arguments.seconds:.0f} s")
            continue
        one = measure_tree if arguments.tree else measure
        each = 0.1 if arguments.quick else arguments.each
        report["cases"].append(one(drafted, vocabulary, dtype, device, params, each))
        print("\n".join(lines(report["cases"][-1])), flush=True)
    report["load_after"] = os.getloadavg()
    report["aims"] = aims(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    why_not = plot(report, path.with_suffix(".svg"))
    print(f"written: {path}" + (f"; no plot: {why_not}" if why_not else ""))
    for aim in report["aims"]:
        print(f"{aim['result']:18} {aim['aim']}: {aim['figure']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
