"""What captured passes gain by doing more, each beside the same without it, on a model of random weights:

- ``lists``: one list of visible key blocks for all layers and heads of a pass over a tree, against programs that each
  look for themselves;
- ``levels``: a drafted chain as one launch with one read, against a launch and a read for every level, on a model of
  the 1B shape that drafts; ``drawn_levels``: the same of paths that are drawn and part at the root, without filters
  and with top-k and top-p, the draws by a sampler where they are made level by level;
- ``verdict``: the verdict on a drawn chain inside the graph of its pass, against the same two launches after it, with
  the read of the verdict, which ends a step; the engine's own cycle both ways besides (``backend.verdicts``);
- ``recovery``: attention-level speculation with the block's rest beside the rest of attention, and a recovery that
  reads the verdict on the device, where all predictions hit and where all miss: against a plain captured pass, and
  against the runner that computes both and chooses, which is not captured. Each with the read of its reports.

    python -m benchmarks.gpu.graph_steps --output graph_steps.json
    python -m benchmarks.gpu.graph_steps --device cpu --shape tiny     # tries it out, in Triton's interpreter: no times

The cache holds random keys and values. Calls take turns; figures are medians of wall time with the device's part, since
a step ends on the host. Every result is compared with its baseline's before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_model import SameTree, fitting, random_tree
from benchmarks.gpu.timing import as_ms, waiting, wall_s
from spec_sdk.bench.machine import device_facts
from spec_sdk.bench.random_models import SHAPES, random_decoder
from spec_sdk.contracts import DraftLogits, PassInputs, PassPlan, RequestState, SamplingParams, TreeShape
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import Capture, GraphExecutor
from spec_sdk.model.powers_of_two import power_of_two
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.session import Session
from spec_sdk.model.step_clock import HostClock, StepClock, StreamClock
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import LogitsToCome, Ops, Recipe, UnscoredTree
from spec_sdk.ops.kept_tokens import numbers_of
from spec_sdk.ops.pass_inputs import RequestRows
from spec_sdk.policy import FixedPolicy
from spec_sdk.policy.fixed import FixedConfig
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler

SCHEMA_VERSION = 1
PARTS = ("levels", "drawn_levels", "verdict", "recovery", "lists")
DEPTH = 5
"""Levels of the drafted chain."""
PATHS = 4
"""Of the drawn tree."""
WIDE = 64
"""Nodes of a larger tree, of which only the host's preparations are timed."""
WARM_UPS = 3
"""Cycles before those that are timed."""
GAMMA = 7
"""Drafted tokens of the chain: with the root, a pass of eight rows."""
SIZE = 128
"""Keys of either end that a prediction is made of."""


class Passes:
    """Passes of one model behind ``prefix`` random keys; executors share its weights and its cache."""

    def __init__(self, shape: str, device: torch.device, prefix: int) -> None:
        from spec_sdk_backends.fused_decoder import FusedDecoder

        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.device, self.prefix = device, prefix
        self.decoder = FusedDecoder(random_decoder(shape, device, dtype, Ops()))
        self.cache = self.decoder.new_cache()
        self.cache.reserve(1, prefix + 128)
        for storage in (self.cache.k_LSGCD, self.cache.v_LSGCD):
            storage.normal_(generator=torch.Generator(device).manual_seed(0))

    def executor(self, ops: Ops, captured: bool = True) -> TorchExecutor:
        if captured:
            return GraphExecutor(self.decoder, ops, capture_on(self.device))
        return TorchExecutor(self.decoder, ops)

    def call(self, executor: TorchExecutor, tree: TokenTree, plan: PassPlan) -> Callable[[], PassOutput]:
        """A pass over ``tree``, from host integers on: as a step makes it."""
        rows = RequestRows.tree(0, self.prefix, tree.token_N, tree.depth_N, tree.end_N)
        padded = executor.rows_of(tree.size)

        def run() -> PassOutput:
            inputs = PassInputs.of("tree", [rows], self.device, padded, padded)
            return executor.forward(inputs, self.cache, plan)

        return run


def capture_on(device: torch.device) -> Capture:
    from spec_sdk.testing import repeated
    from spec_sdk_backends.cuda_graphs import GraphCapture

    return GraphCapture(device) if device.type == "cuda" else repeated


def of_lists(passes: Passes, nodes: int, rounds: int) -> dict[str, Any]:
    from spec_sdk_backends.triton_ops import TritonOps

    tree, plan = random_tree(1, nodes, passes.decoder.vocabulary), PassPlan(SequentialRunner())
    runs = {
        name: passes.call(passes.executor(TritonOps(shares_lists=shared)), tree, plan)
        for name, shared in (("each looks", False), ("one list", True))
    }
    logits = [run().logits_BNV for run in runs.values()]
    return {"nodes": nodes, "off_by": off_by(*logits), "wall_ms": as_ms(wall_s(runs, waiting(passes.device), rounds))}


def of_verdict(passes: Passes, rounds: int) -> dict[str, Any]:
    from spec_sdk_backends.fused_rejection import decide, gather_trees
    from spec_sdk_backends.triton_ops import TritonOps
    from spec_sdk_backends.verdict_tables import TableSizes, VerdictTables

    vocabulary, params = passes.decoder.vocabulary, SamplingParams(temperature=1.0)
    tree = drawn_chain(vocabulary, passes.device, passes.decoder.dtype)
    uniform_D = torch.rand(GAMMA + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    plain, runner = passes.executor(TritonOps()), SequentialRunner()
    sizes = TableSizes(1, plain.rows_of(tree.size), 16, 16, 1, vocabulary)
    tables = VerdictTables(sizes, params, passes.device, passes.decoder.dtype)
    before = passes.call(plain, tree, PassPlan(runner))
    inside = passes.call(passes.executor(TritonOps()), tree, PassPlan(runner, epilogue=tables.decide))

    def after() -> list[list[int]]:
        logits_NV = before().logits_BNV[0, : tree.size]
        found: list[list[int]] = decide(gather_trees([tree], [logits_NV], [uniform_D], params), params).tolist()
        return found

    def in_graph() -> list[list[int]]:
        tables.fill([tree], [uniform_D])
        made = inside().made
        assert made is not None
        found: list[list[int]] = made.tolist()
        return found

    runs: dict[str, Callable[[], object]] = {"pass alone": before, "after the graph": after, "in the graph": in_graph}
    same = after() == in_graph()
    wall = as_ms(wall_s(runs, waiting(passes.device), rounds))
    tokens, cycles = {}, {}
    for name, decides_in_pass in (("after", False), ("inside", True)):
        tokens[name], cycles[name] = cycle_times(passes, tree, params, decides_in_pass, rounds)
    same = same and tokens["after"] == tokens["inside"]
    wide = random_tree(1, WIDE, vocabulary)
    host = {f"{one.size} nodes": host_us(passes, one, params) for one in (tree, wide)}
    return {"drafted": GAMMA, "same": same, "wall_ms": wall, "cycle_ms": as_ms(cycles), "host_us": host}


def host_us(passes: Passes, tree: TokenTree, params: SamplingParams) -> dict[str, float]:
    """Microseconds in which the host prepares a verdict: inside the graph before the pass, after it while it runs."""
    from spec_sdk_backends.fused_multi_step import uniforms_of
    from spec_sdk_backends.fused_rejection import gather_trees
    from spec_sdk_backends.verdicts_in_pass import TablesInUse

    rng, tables = torch.Generator().manual_seed(4), TablesInUse()

    def uniforms(count: int) -> list[float]:
        numbers: list[float] = torch.rand(count, generator=rng, dtype=torch.float64).tolist()
        return numbers

    unscored = UnscoredTree(tree, Recipe(params), uniforms)
    vocabulary, device, dtype = passes.decoder.vocabulary, passes.device, passes.decoder.dtype
    logits_NV = torch.zeros((power_of_two(tree.size), vocabulary), dtype=dtype, device=device)
    to_come = LogitsToCome(1, len(logits_NV), vocabulary, dtype, device)

    def before() -> None:
        assert tables.multi_step([unscored], to_come) is not None

    def meanwhile() -> None:
        gather_trees([tree], [logits_NV[: tree.size]], [uniforms_of(unscored)], params)

    seconds = wall_s({"before the pass": before, "while it runs": meanwhile}, waiting(device), 100)
    return {name: round(1e6 * value, 1) for name, value in seconds.items()}


def cycle_times(
    passes: Passes, tree: TokenTree, params: SamplingParams, decides_in_pass: bool, rounds: int
) -> tuple[list[int], float]:
    """What the engine answers over the same drawn chain, which costs nothing to draft; median seconds of a cycle."""
    from spec_sdk_backends.triton_ops import TritonOps
    from spec_sdk_verifiers.multi_step import MultiStep

    ops = TritonOps(decides_in_pass=decides_in_pass)
    session = Session(passes.executor(ops))
    turns = rounds + WARM_UPS
    # a cache that grew would have all passes captured anew
    session.reserve(1, 16 + (turns + 2) * (GAMMA + 1))
    request = RequestState(
        tokens=list(range(1, 17)),
        prompt_length=16,
        max_new_tokens=(turns + 1) * (GAMMA + 1),
        sampler=ExactSampler(ExactConfig(), params),
        rng=torch.Generator().manual_seed(3),
        ops=ops,
    )
    clock: StepClock = StreamClock(passes.device) if passes.device.type == "cuda" else HostClock()
    policy = FixedPolicy(FixedConfig(depth=GAMMA))
    running = Scheduler(session, SameTree(tree), MultiStep(None), policy, clock=clock).run(request)
    seconds = []
    for turn in range(turns):
        began = time.perf_counter()
        next(running)
        if turn >= WARM_UPS:
            seconds.append(time.perf_counter() - began)
    return list(request.tokens), statistics.median(seconds)


class Drafting:
    """A model that drafts behind a prompt, both ways."""

    def __init__(self, device: torch.device, shape: str) -> None:
        from spec_sdk_backends.fused_decoder import FusedDecoder
        from spec_sdk_backends.triton_ops import TritonOps

        self.device, self.shape, self.ops = device, shape, (ops := TritonOps())
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        decoder = FusedDecoder(random_decoder(shape, device, dtype, ops))
        self.session = Session(GraphExecutor(decoder, ops, capture_on(device)))
        prompt = torch.randint(decoder.vocabulary, (512 if device.type == "cuda" else 24,)).tolist()
        self.session.prefill(0, prompt[:-1])
        (self.root,) = self.session.feed([0], [prompt[-1:]])
        self._pending = prompt[-1]

    def at_once(self, shape: TreeShape, draws: Sequence[float] = ()) -> list[int]:
        each = [draws] if draws else []
        drafted = self.session.draft_levels([0], shape, [self.root], self.session.vocabulary, each)
        assert drafted is not None
        return [token for level in drafted[0] for token in level.token_KW.flatten().tolist()]

    def one_by_one(self, widths: Sequence[int], children: Callable[[DraftLogits, int], list[list[int]]]) -> list[int]:
        """``children``: so many tokens of each node of a level."""
        tree, logits, frontier = TreeBuilder(self._pending), self.root, [0]
        for level, width in enumerate(widths):
            if level:
                (logits,) = self.session.grow([0], [tree], [len(frontier)])
            pairs = zip(frontier, children(logits, width), strict=True)
            frontier = [tree.add(node, token, "chosen") for node, tokens in pairs for token in tokens]
        return tree.token[1:]

    def timed(self, runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, Any]:
        wall = as_ms(wall_s(runs, waiting(self.device), rounds))
        return {"shape": SHAPES[self.shape][0], "depth": DEPTH, "wall_ms": wall}


def of_levels(device: torch.device, shape: str, rounds: int) -> dict[str, Any]:
    drafting, widths = Drafting(device, shape), (1,) * DEPTH

    def at_once() -> list[int]:
        return drafting.at_once(TreeShape(widths))

    def one_by_one() -> list[int]:
        return drafting.one_by_one(widths, lambda logits, width: logits.top(width)[1].tolist())

    same = one_by_one() == at_once()
    return {"same": same, **drafting.timed({"level by level": one_by_one, "at once": at_once}, rounds)}


def of_drawn_levels(device: torch.device, shape: str, rounds: int) -> dict[str, Any]:
    drafting = Drafting(device, shape)
    return {
        name: drawn_levels(drafting, params, rounds)
        for name, params in (("plain", SamplingParams(1.0)), ("filtered", SamplingParams(1.0, top_k=50, top_p=0.9)))
    }


def drawn_levels(drafting: Drafting, params: SamplingParams, rounds: int) -> dict[str, Any]:
    widths = (PATHS, *[1] * (DEPTH - 1))
    sampler = ExactSampler(ExactConfig(), params)
    sampler.backend_ops = drafting.ops
    drawn = TreeShape(widths, 1.0)
    rng = torch.Generator().manual_seed(0)
    uniforms = torch.rand(sum(drawn.nodes), generator=rng, dtype=torch.float64).tolist()

    def at_once() -> list[int]:
        return drafting.at_once(drawn, [*uniforms, *numbers_of(params)])

    def one_by_one() -> list[int]:
        rng.manual_seed(0)

        def children(logits: DraftLogits, width: int) -> list[list[int]]:
            rows = [sampler.distribution(row_V) for row_V in logits.full_KV]
            return [sampler.draw_different(row, width, rng) for row in rows]

        return drafting.one_by_one(widths, children)

    pairs = list(zip(one_by_one(), at_once(), strict=True))
    equal = sum(one == other for one, other in pairs) / len(pairs)
    runs: dict[str, Callable[[], object]] = {"level by level": one_by_one, "at once": at_once}
    return {"equal": equal, "paths": PATHS, **drafting.timed(runs, rounds)}


def of_recovery(passes: Passes, rounds: int, size: int) -> dict[str, Any]:
    from spec_sdk_backends.overlapped_speculation import OverlappedSpeculationRunner
    from spec_sdk_backends.triton_ops import TritonOps
    from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
    from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig

    tree, ops = TokenTree.root_only(1), TritonOps()
    runs: dict[str, Callable[[], PassOutput]] = {
        "plain": passes.call(passes.executor(ops), tree, PassPlan(SequentialRunner()))
    }

    def reported(run: Callable[[], PassOutput]) -> Callable[[], PassOutput]:
        def with_reports() -> PassOutput:
            output = run()
            assert all(output.reports)
            return output

        return with_reports

    for outcome, threshold in (("hits", 1e9), ("misses", 0.0)):
        verifier = L2Threshold(L2ThresholdConfig(threshold=threshold))
        overlapped = PassPlan(OverlappedSpeculationRunner(verifier, size))
        runs[f"{outcome}, in a graph"] = reported(passes.call(passes.executor(ops), tree, overlapped))
        choosing = AttentionSpeculativeRunner(lambda: AttentionSink(AttentionSinkConfig(size=size)), verifier)
        chooses = passes.executor(ops, captured=False)
        runs[f"{outcome}, both computed"] = reported(passes.call(chooses, tree, PassPlan(choosing)))
    logits = {name: run().logits_BNV for name, run in runs.items()}
    return {
        "prefix": passes.prefix,
        "size": size,
        "off_by": {
            outcome: off_by(logits[f"{outcome}, in a graph"], logits[f"{outcome}, both computed"])
            for outcome in ("hits", "misses")
        },
        "wall_ms": as_ms(wall_s(runs, waiting(passes.device), rounds)),
    }


def drawn_chain(vocabulary: int, device: torch.device, dtype: torch.dtype) -> TokenTree:
    """GAMMA tokens, each drawn from random logits of its own on the device."""

    sampler, builder, node = ExactSampler(ExactConfig("torch"), SamplingParams(temperature=1.0)), TreeBuilder(1), 0
    rng = torch.Generator().manual_seed(1)
    for _ in range(GAMMA):
        logits_V = torch.randn(vocabulary, generator=rng)
        token = int(torch.multinomial(logits_V.to(dtype).float().softmax(-1), 1, generator=rng))
        node = builder.add(node, token, "with_replacement", sampler.distribution(logits_V.to(device, dtype)))
    return builder.build().tree


def off_by(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


@torch.no_grad()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All parts that there is time for; the report is written after each."""
    began, device = time.monotonic(), torch.device(options.device)
    shape = fitting(options.shape, device)
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "graph_steps",
        **device_facts(device),
        "shape": SHAPES[shape][0],
        "left_out": {},
    }
    passes = Passes(shape, device, options.prefix)
    # an interpreter's blocks have 64 slots: a tree of more, so that there is something to list
    nodes = (64, 128) if device.type == "cuda" else (80,)
    parts: dict[str, Callable[[], Any]] = {
        "lists": lambda: [of_lists(passes, count, options.rounds) for count in nodes],
        "levels": lambda: of_levels(device, "1b" if device.type == "cuda" else "tiny", options.rounds),
        "drawn_levels": lambda: of_drawn_levels(device, "1b" if device.type == "cuda" else "tiny", options.rounds),
        "verdict": lambda: of_verdict(passes, options.rounds),
        "recovery": lambda: of_recovery(passes, options.rounds, min(SIZE, options.prefix // 4)),
    }
    for name in options.parts:
        part = parts[name]
        spent = time.monotonic() - began
        if spent > options.seconds:
            report["left_out"][name] = f"{spent:.0f} s of {options.seconds:.0f} were spent"
            continue
        try:
            report[name] = part()
        except Exception as error:  # one that cannot be captured leaves the figures of the others
            report["left_out"][name] = f"{type(error).__name__}: {error}"[:500]
        if options.output is not None:
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def lines(report: Mapping[str, Any]) -> list[str]:
    """A line per figure."""

    def times(part: Mapping[str, Any]) -> str:
        return " | ".join(f"{name} {value:.3f} ms" for name, value in part["wall_ms"].items())

    told = [f"{report['machine']}, {report['shape']}"]
    told += [
        f"lists, {one['nodes']} nodes, off by {one['off_by']:.1e}: {times(one)}" for one in report.get("lists", ())
    ]
    if verdict := report.get("verdict"):
        same = "the same" if verdict["same"] else "NOT THE SAME"
        told.append(f"verdict on {verdict['drafted']} drafted tokens, {same}: {times(verdict)}")
        cycle = " | ".join(f"{name} {value:.3f} ms" for name, value in verdict["cycle_ms"].items())
        told.append(f"the engine's cycle with it: {cycle}")
        for size, one in verdict["host_us"].items():
            prepared = " | ".join(f"{name} {value:.0f} us" for name, value in one.items())
            told.append(f"the host prepares a verdict on {size}: {prepared}")
    if levels := report.get("levels"):
        same = "the same" if levels["same"] else "NOT THE SAME"
        told.append(f"{levels['depth']} levels of a draft, {levels['shape']}, {same}: {times(levels)}")
    for name, drawn in report.get("drawn_levels", {}).items():
        shown = f"{drawn['depth']} levels of {drawn['paths']} drawn paths, {name}, {drawn['shape']}"
        told.append(f"{shown}, {drawn['equal']:.0%} of the tokens are the same: {times(drawn)}")
    if recovery := report.get("recovery"):
        worst = max(recovery["off_by"].values())
        told.append(f"recovery behind {recovery['prefix']} keys, off by {worst:.1e}: {times(recovery)}")
    return told + [f"left out: {part}: {why}" for part, why in report["left_out"].items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What lists, verdicts and recovery gain in captured passes")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b", help="8b: 1b where that does not fit")
    parser.add_argument("--prefix", type=int, default=7680, help="keys in the cache")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--rounds", type=int, default=40, help="calls of each kind that are timed")
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no further part after this")
    parser.add_argument("--output", type=Path, help="the JSON to write")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        # read when triton is imported, which is yet to come
        os.environ.setdefault("TRITON_INTERPRET", "1")
    report = measure(options)
    print("\n".join(lines(report)))
    broken = [why for why in report["left_out"].values() if "were spent" not in why]
    return int(bool(broken) or any(report.get(part, {}).get("same") is False for part in ("verdict", "levels")))


if __name__ == "__main__":
    sys.exit(main())
