"""Time per token of ALSpec on two devices, which are two CPU cores here, against one device and tensor parallelism.

    python -m benchmarks.alspec_groups --contexts 256 1024 4096 8000

One process per core, one thread each: a core is a device. Measured in turn, in the same processes, over context length:
(a) one device; (b) both, tensor parallel; (c) both as two device groups (SGDC), at the verifier's own hit rate and at
forced ones (thresholds of 0 or infinity per layer). Writes a JSON and a plot (SVG) with the contexts from which on (c)
is faster than (a) and (b).

Times are what passed, a round's mean over its tokens; the file has every round's, their medians and the machine's load.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.support import plots
from benchmarks.support.processes import start_others
from spec_sdk.bench.output_option import add_output
from spec_sdk.bench.reports import write_report
from spec_sdk.contracts import BlockRunner, Predictor
from spec_sdk.model.models import Models
from spec_sdk.model.runners.sequential import PLAIN
from spec_sdk.model.runners.speculative_groups import SpeculativeGroupsRunner
from spec_sdk.model.session import Session
from spec_sdk.model.tensor_parallel import divided
from spec_sdk.ranks import ALONE, DeviceGroups, Ranks
from spec_sdk.tree import TokenTree
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig

PROGRAM = ("-m", "benchmarks.alspec_groups")
ONE, SPREAD, OWN = "one device", "two devices, tensor parallel", "two devices, ALSpec"
Measured = tuple[Session, BlockRunner]
"""A session, and what runs its passes: those that differ in their thresholds alone share one."""


def forced(rate: float, layers: int) -> L2ThresholdConfig:
    """Thresholds that make this share of the layers, evenly spread, hit always and the others miss always."""
    hits = [math.floor((i + 1) * rate) > math.floor(i * rate) for i in range(layers)]
    return L2ThresholdConfig(layer_thresholds={i: math.inf if hit else 0.0 for i, hit in enumerate(hits)})


def sessions(
    arguments: argparse.Namespace, ranks: Ranks, groups: DeviceGroups, backend: AccelerateBackend
) -> dict[str, Measured]:
    """What is measured, by name. One device's session is made on every rank, and measured on the leader."""
    one, spread = models(arguments, backend).target.executor, models(arguments, backend, ranks).target.executor
    double = divided(one, one.config, ranks, groups.group)

    def predictor() -> Predictor:
        return AttentionSink(AttentionSinkConfig(arguments.size))

    configs = {f"{OWN}, threshold {arguments.threshold:g}": L2ThresholdConfig(arguments.threshold)}
    configs |= {f"{OWN}, hit rate {rate:g} forced": forced(rate, one.layers) for rate in (0.0, 0.5, 1.0)}
    found: dict[str, Measured] = {ONE: (Session(one), PLAIN), SPREAD: (Session(spread), PLAIN)}
    own = Session(double)
    for name, config in configs.items():
        found[name] = own, SpeculativeGroupsRunner(predictor, L2Threshold(config), groups)
    return found


def models(arguments: argparse.Namespace, backend: AccelerateBackend, ranks: Ranks = ALONE) -> Models:
    """The target whole, or this rank's shard of it."""
    return Models(arguments.target, "cut", "auto", backend.load, backend.ops, backend.device, torch.float32, ranks)


def fill(found: Mapping[str, Measured], tokens: Sequence[int], ranks: Ranks) -> None:
    """Prefill ``tokens`` into the cache of every session, which takes a minute each."""
    for session in {id(session): session for session, _ in found.values()}.values():
        began = time.perf_counter()
        session.prefill(0, tokens)
        if ranks.is_leader:
            print(f"prefill of {len(tokens)} tokens: {time.perf_counter() - began:.0f} s", flush=True)


def decode(session: Session, pending: int, count: int) -> tuple[float, list[int], list[bool]]:
    """Seconds per token, greedy tokens and hits of ``count`` passes, after which the cache is as before."""
    before, tokens, hits = session.length(), list[int](), list[bool]()
    began = time.perf_counter()
    for _ in range(count):
        (scores,) = session.score([0], [TokenTree.root_only(pending)])
        pending = int(scores.logits_NV[0].argmax())
        session.commit([0], [[0]])
        tokens.append(pending)
        if scores.attention is not None:
            hits += [hit for hit in scores.attention.hit if hit is not None]
    seconds = (time.perf_counter() - began) / count
    session.truncate(0, before)
    return seconds, tokens, hits


def measure(
    found: Mapping[str, Measured],
    contexts: Sequence[int],
    tokens: Sequence[int],
    rounds: int,
    count: int,
    ranks: Ranks,
) -> list[dict[str, Any]]:
    """Per context and name: seconds per token of every round, the hit rate, the tokens."""
    rows = []
    for context in sorted(contexts, reverse=True):
        runs: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in found}
        for session, _ in found.values():
            session.truncate(0, context)
        for turn in range(rounds + 1):
            for name, (session, runner) in found.items():
                session.runner = runner
                # the others wait here while the leader is on its own
                ranks.decide(lambda: None)
                if name == ONE and not ranks.is_leader:
                    continue
                run = runs[name]
                seconds, run["tokens"], hits = decode(session, tokens[context], count)
                run["hit_rate"] = sum(hits) / len(hits) if hits else None
                # the first round warms up
                if turn:
                    run["seconds"].append(seconds)
        for run in runs.values():
            run |= {"median_s": statistics.median(run["seconds"])} if run["seconds"] else {}
        rows.append({"context": context, "runs": runs})
        if ranks.is_leader:
            print(f"context {context:35}  ms per token")
            for name, run in runs.items():
                rate = "" if run["hit_rate"] is None else f"  {100 * run['hit_rate']:3.0f} % hits"
                print(f"  {name:46}{1e3 * run['median_s']:8.1f}{rate}", flush=True)
    return rows[::-1]


def crossover(rows: Sequence[Mapping[str, Any]], name: str, rival: str) -> float | None:
    """The context from which on ``name`` stays faster than ``rival``: between two measured ones a straight line.

    None if it is slower in the longest one.
    """
    ahead = [row["runs"][rival]["median_s"] - row["runs"][name]["median_s"] for row in rows]
    contexts = [row["context"] for row in rows]
    if ahead[-1] <= 0:
        return None
    behind = [i for i, lead in enumerate(ahead) if lead <= 0]
    if not behind:
        return float(contexts[0])
    i = behind[-1]
    return float(contexts[i] + (contexts[i + 1] - contexts[i]) * -ahead[i] / (ahead[i + 1] - ahead[i]))


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Milliseconds per token over context, with the crossovers of ALSpec at full hit rate."""
    if (figure := plots.new_figure(9, 5.5)) is None:
        return
    axis, rows = figure.subplots(), report["contexts"]
    contexts = [row["context"] for row in rows]
    for name in rows[0]["runs"]:
        style = "-" if name.startswith(OWN) else "--"
        label = name
        hit_rate = rows[-1]["runs"][name].get("hit_rate")
        if "threshold" in name and hit_rate is not None:
            label += f" ({100 * hit_rate:.0f} % hits at {contexts[-1]})"
        axis.plot(contexts, [1e3 * row["runs"][name]["median_s"] for row in rows], style, marker="o", label=label)
    top = 1.6e3 * max(run["median_s"] for row in rows for run in row["runs"].values())
    axis.set_ylim(0, top)
    for entry in report["crossovers"]:
        if entry["context"] is not None and "hit rate 1" in entry["faster"]:
            axis.axvline(entry["context"], color="grey", linewidth=1, linestyle=":")
            axis.annotate(
                f"hit rate 1: faster than\n{entry['than']}\nfrom {entry['context']:.0f} on",
                (entry["context"], 0.99 * top),
                rotation=90,
                verticalalignment="top",
                horizontalalignment="right",
                fontsize=7,
            )
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [str(context) for context in contexts])
    axis.set_xlabel("context (tokens)")
    axis.set_ylabel("ms per token")
    axis.set_title(f"{report['target']}, {report['machine']}; load {report['load_average_1min'][1]:.1f}", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower left")
    plots.save(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--contexts", type=int, nargs="*", default=[256, 1024, 4096, 8000])
    parser.add_argument("--text", type=Path, help="a file whose beginning is the context; else the pages of docs/")
    parser.add_argument("--size", type=int, default=64, help="keys at each end that a prediction reads")
    parser.add_argument("--threshold", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=6, help="decoded per round")
    parser.add_argument("--note", default="")
    add_output(parser, Path("benchmarks/results/alspec_groups.json"))
    arguments = parser.parse_args()
    leads = os.environ.get("RANK", "0") == "0"
    load = os.getloadavg()[0]
    others = start_others(2, PROGRAM) if leads else []
    backend = AccelerateBackend(AccelerateConfig(device="cpu", threads=1, pin=True, timeout=1800))
    backend.join()
    ranks = backend.ranks
    found = sessions(arguments, ranks, ranks.halves(), backend)
    tokenizer = models(arguments, backend).target.tokenizer
    pages = [arguments.text] if arguments.text else sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    tokens = tokenizer.encode(text)[: max(arguments.contexts) + 1]
    fill(found, tokens[:-1], ranks)
    rows = measure(found, arguments.contexts, tokens, arguments.rounds, arguments.tokens, ranks)
    if leads:
        names = [name for name in found if name.startswith(OWN)]
        report = {
            "machine": backend.describe(),
            "cpus": os.cpu_count(),
            "target": arguments.target,
            "dtype": "float32",
            "predictor_size": arguments.size,
            "tokens_per_round": arguments.tokens,
            "load_average_1min": [load, os.getloadavg()[0]],
            "note": arguments.note,
            "crossovers": [
                {"faster": name, "than": rival, "context": crossover(rows, name, rival)}
                for name in names
                for rival in (ONE, SPREAD)
            ],
            "contexts": rows,
        }
        write_report(arguments.output, report)
        plot(report, arguments.output.with_suffix(".svg"))
        for entry in report["crossovers"]:
            print(f"{entry['faster']} against {entry['than']}: {entry['context'] or 'slower'}")
    ranks.close()
    return max((other.wait() for other in others), default=0)


if __name__ == "__main__":
    sys.exit(main())
