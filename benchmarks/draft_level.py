"""What a level of a draft costs, part by part: an EAGLE head, and draft models.

    OMP_NUM_THREADS=2 python -m benchmarks.draft_level --seconds 2

Every drafter proposes trees behind a growing text, as an engine asks it to; the target's states are random numbers.
A level is what a tree of depth ``--depth`` takes longer than one of depth 1, divided by the levels between; a root is a
tree of depth 1. Both are timed as they are drafted, in one native call where there is one, and, by turns, with a pass
for each level. The parts of the latter are timed inside the same calls: what enters the blocks, the blocks, the output
head, the rest of the session's call, and growing, which is all that is not the session's. Of each time the least over
all proposals counts. The target's pass of one row stands beside them. Writes results/draft_level-<machine>.json.

Legend: N rows, M model dim.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.places import RESULTS
from spec_sdk.bench.machine import device_facts, slug
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import build, run_script
from spec_sdk.contracts import Budget, Drafter, RequestState, SamplingParams
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.pipeline import Pipeline
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TokenTree

PROMPT = 300
TOKENS = [1 + 7919 * i % 8000 for i in range(2048)]
DRAFTERS: Mapping[str, tuple[str, ...]] = {
    "head": ("pipeline=eagle_tree", "drafter.growth=beam"),
    "draft_model": ("pipeline=sd_chain", "drafter.growth=beam"),
    "easyspec": ("pipeline=easyspec_paper", "drafter.growth=beam"),
    "cut": ("pipeline=sd_chain", "model.draft=cut", "model.draft_layers=[0,1,2,27,28,29]", "drafter.growth=beam"),
}
STAGES = ("whole pass", "entering", "blocks", "head")
PARTS = (*STAGES, "session", "growth")


class Parts:
    """Seconds by part, summed while ``calls`` run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timing


class Proposing:
    """A drafter that is asked again and again, a token further in the text each time."""

    def __init__(self, pipeline: Pipeline, temperature: float) -> None:
        target = pipeline.models.target.executor
        assert isinstance(target, TorchExecutor)
        self.drafter: Drafter = pipeline.make_drafter()
        sampler = pipeline.make_sampler(SamplingParams(temperature=temperature))
        self.state: RequestState = request_for(TOKENS[:PROMPT], sampler, 0)
        self.state.ops = target.ops
        self._size, self._dtype = target.config.hidden_size, target.dtype
        self.drafter.start([self.state.view], [self._hidden(PROMPT - 1)])

    def _hidden(self, rows: int) -> dict[int, torch.Tensor]:
        generator = torch.Generator().manual_seed(rows)
        return {
            layer: torch.randn(rows, self._size, generator=generator).to(self._dtype) for layer in self.drafter.taps
        }

    def commit(self) -> None:
        """The text goes on by a token."""
        token = TOKENS[len(self.state.tokens)]
        self.state.tokens.append(token)
        self.drafter.observe([self.state.view], [[token]], [self._hidden(1)])

    def propose(self, depth: int) -> TokenTree:
        (tree,) = self.drafter.propose([self.state.view], [Budget(depth)])
        return tree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafters", nargs="+", default=["head", "draft_model", "easyspec"], choices=list(DRAFTERS))
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8], help="paths of a level")
    parser.add_argument("--depth", type=int, default=5, help="levels of the deeper tree")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="per drafter and width")
    add_output(parser)
    parser.add_argument("overrides", nargs="*", default=["model.dtype=bfloat16"])
    arguments = parser.parse_intermixed_args()
    report: dict[str, Any] = {"temperature": arguments.temperature, "drafters": {}}
    for name in arguments.drafters:
        for width in arguments.widths:
            widths = (f"drafter.width={width}",)
            pipeline = build(*DRAFTERS[name], *widths, *arguments.overrides)
            proposing = Proposing(pipeline, arguments.temperature)
            found = level_of(proposing, arguments.depth, arguments.seconds)
            found["target_pass_ms"] = target_pass(pipeline)
            report["drafters"].setdefault(name, {})[str(width)] = found
            report.setdefault("machine", device_facts(pipeline.models.target.executor.device))
            report.setdefault("dtype", pipeline.dtype)
            parts = ", ".join(f"{part} {found['parts_ms'][part]:.3f}" for part in PARTS)
            print(
                f"{name}, {width} rows: a level {found['level_ms']:.3f} ms, of a pass each {found['pass_each_ms']:.3f} "
                f"({parts}); root {found['root_ms']:.3f} and {found['root_alone_ms']:.3f}, "
                f"target pass {found['target_pass_ms']:.2f}",
                flush=True,
            )
    output = arguments.output or RESULTS / f"draft_level-{slug(str(report['machine']['machine']))}.json"
    write_report(output, report)
    return 0


def _says_nothing(*arguments: object) -> None:
    """Of a growth: neither which paths it keeps, nor which shape its trees have."""


def level_of(proposing: Proposing, depth: int, seconds: float) -> dict[str, Any]:
    """The least over proposals of both depths, which take turns."""
    session = proposing.drafter.draft_session
    assert isinstance(session, Session) and isinstance(session.executor, TorchExecutor)
    executor, parts = session.executor, Parts()
    decoder: Any = executor.decoder
    patched: Any = session
    patched.grow = parts.timed("grow", session.grow)
    decoder.forward_pass = parts.timed("entering", decoder.forward_pass)
    decoder.blocks_at_once = parts.timed("blocks", decoder.blocks_at_once)
    decoder.head = parts.timed("head", decoder.head)
    runs: Any = executor
    if runs._whole_pass is not None:
        runs._whole_pass = parts.timed("whole pass", runs._whole_pass)
    drafter: Any = proposing.drafter
    growth = drafter.growth
    says: tuple[Callable[..., Any], ...] = growth.kept_paths, growth.fixed_shape
    ways: dict[str, tuple[Callable[..., Any], ...]] = {"as drafted": says, "pass each": (_says_nothing, _says_nothing)}
    taken: dict[tuple[str, int], list[dict[str, float]]] = {(way, levels): [] for way in ways for levels in (1, depth)}
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or len(taken["pass each", depth]) < 6:
        if len(proposing.state.tokens) >= len(TOKENS):
            break
        for way, levels in taken:
            growth.kept_paths, growth.fixed_shape = ways[way]
            proposing.commit()
            parts.seconds.clear()
            start = time.perf_counter()
            tree = proposing.propose(levels)
            whole = time.perf_counter() - start
            assert tree.depth == levels, f"a tree of depth {tree.depth} where {levels} was asked for"
            taken[way, levels].append({"whole": whole, **parts.seconds})

    def between(part: str, way: str = "pass each") -> float:
        deep, flat = (min(one.get(part, 0.0) for one in taken[way, levels]) for levels in (depth, 1))
        return 1e3 * (deep - flat) / (depth - 1)

    level = {part: between(part) for part in ("whole", "grow", *STAGES)}
    found = {part: level[part] for part in STAGES}
    found["session"] = level["grow"] - sum(found.values())
    found["growth"] = level["whole"] - level["grow"]
    roots = {way: 1e3 * min(one["whole"] for one in taken[way, 1]) for way in ways}
    return {
        "level_ms": round(between("whole", "as drafted"), 3),
        "root_ms": round(roots["as drafted"], 3),
        "pass_each_ms": round(level["whole"], 3),
        "parts_ms": {part: round(of, 3) for part, of in found.items()},
        "root_alone_ms": round(roots["pass each"], 3),
        "proposals": len(taken["pass each", depth]),
    }


def target_pass(pipeline: Pipeline) -> float:
    """Milliseconds of a plain step."""
    session, taken = pipeline.models.session(pipeline.models.target), list[float]()
    session.reserve(1, PROMPT + 8)
    session.prefill(0, TOKENS[:PROMPT])
    for _ in range(8):
        start = time.perf_counter()
        session.score([0], [TokenTree.root_only(5)])
        taken.append(time.perf_counter() - start)
    return round(1e3 * min(taken), 2)


if __name__ == "__main__":
    sys.exit(run_script(main))
