"""Speculative sampling: time and memory of one verification step on trees with branches.

    python -m benchmarks.tree_verdicts            # on the GPU if there is one, else on the CPU
    python -m benchmarks.tree_verdicts --quick    # a smoke run

Trees of WIDTHS, their children made in each of three ways: chosen, drawn with replacement, without. ``reference``,
``exact`` and ``sigmoid`` get the same logits and tokens in one process, turn by turn; so does ``by nodes``, ``exact``
without its kernels, in torch, which on a GPU waits for the host at every decision. A step begins with what drawing
leaves behind, as :mod:`benchmarks.support.sampling_rivals` has it: made distributions for ``reference`` and, of draws
without replacement, wherever these are made in torch; else the logits and the drawn token's q. Chosen tokens have no
distribution. Figures are medians over steps of several sets of inputs; memory is that of
a sampler's first step, and so holds the distributions that drawing leaves.

Prints a table (ratio first: the reference's time over the rival's) and writes ``results/tree_verdicts-<machine>.json``.
On a GPU it needs triton.

Legend: V vocabulary.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.places import RESULTS
from benchmarks.sampling import FILTERED, SAMPLED, VOCABULARIES
from benchmarks.support.cuda_timing import median_wall
from benchmarks.support.device_ops import command_line_ops
from benchmarks.support.live_table import LiveTable
from benchmarks.support.rivals import COLUMNS, Case, faster_aim, rival_rows
from spec_sdk.bench.aims import Aim
from spec_sdk.bench.case_report import CaseReport
from spec_sdk.bench.device_scripts import device_parser, output_path
from spec_sdk.bench.memory import peak_bytes
from spec_sdk.bench.timing import median_seconds, own_clock
from spec_sdk.contracts import Request, Sampler, SamplingParams
from spec_sdk.contracts.request import RequestState
from spec_sdk.tree import DraftDistribution, DrawKind, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidSampler
from spec_sdk_verifiers.multi_step import MultiStep

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
        distributions = {} if self.kind == "chosen" else self.distributions(sampler)
        builder = TreeBuilder(0)
        for node, token in self.drawn:
            builder.add(node, token, self.kind, distributions.get(node))
        return MultiStep(None).verify_one(builder.build().tree, self.target, request).tokens

    def distributions(self, sampler: Sampler) -> dict[int, DraftDistribution]:
        """What drawing with ``sampler`` leaves behind, the same for every step."""
        if sampler not in self._left:
            distributions = self._left[sampler] = {
                node: sampler.distribution(row_V) for node, row_V in self.draft.items()
            }
            drawn_by_kernels = self.target.device.type == "cpu" and sampler.ops is None
            for node, distribution in distributions.items():
                if isinstance(sampler, ExactSampler) and (self.kind == "with_replacement" or drawn_by_kernels):
                    # of different tokens only the first one's is remembered
                    known = [*self.q[node].items()][: None if self.kind == "with_replacement" else 1]
                    distribution.known = dict(known)
                else:
                    assert distribution.q_V is not None
        return self._left[sampler]


def rivals(steps: Sequence[TreeStep], params: SamplingParams, device: torch.device) -> dict[str, Callable[[], object]]:
    """Calls that decide one step after the other; samplers have never been used."""
    samplers: dict[str, Sampler] = {
        "reference": ReferenceSampler(None, params),
        "exact": ExactSampler(None, params),
        "sigmoid": SigmoidSampler(None, params),
        "by nodes": ExactSampler(ExactConfig("torch"), params),
    }
    return {name: _next_step(steps, sampler, device) for name, sampler in samplers.items()}


def _next_step(steps: Sequence[TreeStep], sampler: Sampler, device: torch.device) -> Callable[[], object]:
    turn = itertools.cycle(steps)
    rng = torch.Generator().manual_seed(1)
    ops = command_line_ops(device)
    request = RequestState([0], 1, 1 << 30, sampler, rng, ops=ops).view

    def call() -> object:
        # as the pass before a verdict does: threads are told how to wait
        ops.before_pass()
        return next(turn).by(sampler, request)

    return call


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
        times = median_seconds(calls, seconds, clock=own_clock(device))
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


def rows(case: Case) -> list[list[str]]:
    return rival_rows(case, "reference", f"{shape(case)} {case['dtype']} {case['filters'] or ''}".strip())


def shape(case: Case) -> str:
    return f"{case['children']} V={case['vocabulary']}"


def aims(report: dict[str, Any]) -> list[Aim]:
    """``exact`` against each of the others, over the cases without filters."""
    plain = [case for case in report["cases"] if not case["filters"]]
    others = [name for name in plain[0]["rivals"] if name != "exact"] if plain else []
    return [faster_aim("exact", beside, plain, shape, report["device"]) for beside in others]


def main() -> int:
    arguments = device_parser(__doc__, seconds=600.0, each=2.0).parse_args()
    device = torch.device(arguments.device)
    torch.set_grad_enabled(False)
    path = output_path(arguments.output, RESULTS, "tree_verdicts", device, "quick" if arguments.quick else "")
    facts = {"schema_version": SCHEMA_VERSION, "quick": arguments.quick}
    report = CaseReport(path, "tree_verdicts", device, arguments.seconds, **facts)
    first, second = (torch.bfloat16, torch.float32) if device.type == "cuda" else (torch.float32, torch.bfloat16)
    plan = [(kind, V, first, SAMPLED) for V in VOCABULARIES for kind in KINDS]
    plan += [(kind, 128_256, second, SAMPLED) for kind in KINDS]
    plan += [("without_replacement", V, first, FILTERED) for V in VOCABULARIES]
    if arguments.quick:
        plan = [(KINDS[0], 1000, first, SAMPLED), (KINDS[2], 1000, second, FILTERED)]
    print("ratio: the reference's time over the rival's")
    table = LiveTable(COLUMNS)
    for kind, V, dtype, params in report.in_time(plan, lambda case: f"{case[0]} V={case[1]} {case[2]}"):
        each = 0.1 if arguments.quick else arguments.each
        report.add(measure(kind, V, dtype, device, params, each))
        for row in rows(report.cases[-1]):
            table.row(*row)
    report.finish(aims(report.content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
