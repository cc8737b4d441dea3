"""Time per token of ALSpec on two devices, which are two CPU cores here, against one device and tensor parallelism.

    python -m benchmarks.alspec_groups --contexts 256 1024 4096 8192

One process per core, one thread each: a core is a device. Measured in turn, in the same processes, over context length:
(a) one device; (b) both, tensor parallel; (c) both as two device groups (SGDC), at the verifier's own hit rate and at
forced ones (thresholds of 0 or infinity per layer). Writes a JSON and a plot (SVG) with the contexts from which on (c)
is faster than (a) and (b).

The other load of the machine is in the file: processes that wait for each other suffer from it more than one alone. A
time is a round's mean over its tokens; the file has every round's, their median and their least.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.ranks import start_others
from spec_sdk.contracts import Predictor
from spec_sdk.model.models import Models
from spec_sdk.model.runners.base import BlockRunner
from spec_sdk.model.runners.speculative_groups import SpeculativeGroupsRunner
from spec_sdk.model.session import Session
from spec_sdk.model.tensor_parallel import TensorParallelDecoder, shard_of
from spec_sdk.ranks import DeviceGroups, Ranks
from spec_sdk.tree import TokenTree
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_predictors.attention_sink import AttentionSink, AttentionSinkConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig

PROGRAM = ("-m", "benchmarks.alspec_groups")
ONE, SPREAD, OWN = "one device", "two devices, tensor parallel", "two devices, ALSpec"


def forced(rate: float, layers: int) -> L2ThresholdConfig:
    """Thresholds that make this share of the layers, evenly spread, hit always and the others miss always."""
    hits = [math.floor((i + 1) * rate) > math.floor(i * rate) for i in range(layers)]
    return L2ThresholdConfig(layer_thresholds={i: math.inf if hit else 0.0 for i, hit in enumerate(hits)})


def sessions(
    arguments: argparse.Namespace, ranks: Ranks, groups: DeviceGroups, device: torch.device, ops: Any
) -> dict[str, Session]:
    """What is measured, by name. One device's session is on every rank, since it fills the others' caches."""
    one = Models(arguments.target, "cut", "auto", ops, device, torch.float32)
    spread = Models(arguments.target, "cut", "auto", ops, device, torch.float32, ranks)
    whole = one.target.decoder
    double = TensorParallelDecoder(whole, whole.vocabulary, ranks, groups.group)

    def predictor() -> Predictor:
        return AttentionSink(AttentionSinkConfig(arguments.size))

    configs = {f"{OWN}, threshold {arguments.threshold:g}": L2ThresholdConfig(arguments.threshold)}
    configs |= {f"{OWN}, hit rate {rate:g} forced": forced(rate, whole.layers) for rate in (0.0, 0.5, 1.0)}
    found: dict[str, Session] = {ONE: Session(whole, ops), SPREAD: Session(spread.target.decoder, ops)}
    for name, config in configs.items():
        runner: BlockRunner = SpeculativeGroupsRunner(predictor(), L2Threshold(config), groups)
        found[name] = Session(double, ops, runner)
    return found


def fill(found: Mapping[str, Session], tokens: Sequence[int], ranks: Ranks) -> None:
    """K and V of ``tokens`` in all caches: computed once, since a whole prefill takes a minute."""
    one = found[ONE]
    began = time.perf_counter()
    one.prefill(tokens)
    if ranks.is_leader:
        print(f"prefill of {len(tokens)} tokens: {time.perf_counter() - began:.0f} s", flush=True)
    heads = slice(*shard_of(one.decoder.config, ranks.rank, ranks.size).kv_heads)
    for name, session in found.items():
        if session is one:
            continue
        part = heads if name == SPREAD else slice(None)
        session.cache.reserve(len(tokens))
        for source, copy in ((one.cache.k_LBGCD, session.cache.k_LBGCD), (one.cache.v_LBGCD, session.cache.v_LBGCD)):
            copy[..., : len(tokens), :] = source[:, :, part, : len(tokens)]
        session.cache.commit(range(len(tokens)))


def decode(session: Session, pending: int, count: int) -> tuple[float, list[int], list[bool]]:
    """Seconds per token, greedy tokens and hits of ``count`` passes, after which the cache is as before."""
    before, tokens, hits = session.length, [], []
    began = time.perf_counter()
    for _ in range(count):
        scores = session.score(TokenTree.root_only(pending))
        pending = int(scores.logits_NV[0].argmax())
        session.commit([0])
        tokens.append(pending)
        if scores.attention is not None:
            hits += [hit for hit in scores.attention.hit if hit is not None]
    seconds = (time.perf_counter() - began) / count
    session.truncate(before)
    return seconds, tokens, hits


def measure(
    found: Mapping[str, Session], contexts: Sequence[int], tokens: Sequence[int], rounds: int, count: int, ranks: Ranks
) -> list[dict[str, Any]]:
    """Per context and name: seconds per token of every round, the hit rate, the tokens."""
    rows = []
    for context in sorted(contexts, reverse=True):
        times: dict[str, list[float]] = {name: [] for name in found}
        rates: dict[str, float | None] = {}
        chosen: dict[str, list[int]] = {}
        for session in found.values():
            session.truncate(context)
        for turn in range(rounds + 1):
            for name, session in found.items():
                # the others wait here while the leader is on its own
                ranks.decide(lambda: None)
                if name == ONE and not ranks.is_leader:
                    continue
                seconds, chosen[name], hits = decode(session, tokens[context], count)
                if turn:
                    times[name].append(seconds)
                rates[name] = sum(hits) / len(hits) if hits else None
        row = {
            "context": context,
            "runs": {
                name: {
                    "seconds": each,
                    "median_s": statistics.median(each) if each else None,
                    "least_s": min(each, default=None),
                    "hit_rate": rates.get(name),
                    "tokens": chosen.get(name),
                }
                for name, each in times.items()
            },
        }
        rows.append(row)
        if ranks.is_leader:
            print(f"context {context}")
            for name, run in row["runs"].items():  # type: ignore[attr-defined]
                rate = "" if run["hit_rate"] is None else f"  {100 * run['hit_rate']:3.0f} % hits"
                print(
                    f"  {name:46}{1e3 * run['median_s']:8.1f} ms  least {1e3 * run['least_s']:8.1f}{rate}", flush=True
                )
    return rows[::-1]


def crossover(rows: Sequence[Mapping[str, Any]], name: str, rival: str, by: str) -> float | None:
    """The context from which on ``name`` stays faster than ``rival``: between two measured ones a straight line.

    None if it is slower in the longest one.
    """
    ahead = [row["runs"][rival][by] - row["runs"][name][by] for row in rows]
    contexts = [row["context"] for row in rows]
    if ahead[-1] <= 0:
        return None
    behind = [i for i, lead in enumerate(ahead) if lead <= 0]
    if not behind:
        return float(contexts[0])
    i = behind[-1]
    return float(contexts[i] + (contexts[i + 1] - contexts[i]) * -ahead[i] / (ahead[i + 1] - ahead[i]))


def plot_svg(report: Mapping[str, Any], by: str = "median_s") -> str:
    """Milliseconds per token over context, with the crossovers of ALSpec at full hit rate."""
    import io

    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "spec-sdk"  # the same report gives the same file
    from matplotlib.figure import Figure

    rows = report["contexts"]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axis = figure.subplots()
    contexts = [row["context"] for row in rows]
    for name in rows[0]["runs"]:
        style = "-" if name.startswith(OWN) else "--"
        label = name
        if "threshold" in name:
            label += f" ({100 * rows[-1]['runs'][name]['hit_rate']:.0f} % hits at {contexts[-1]})"
        axis.plot(contexts, [1e3 * row["runs"][name][by] for row in rows], style, marker="o", label=label)
    for entry in report["crossovers"]:
        if entry["by"] == by and entry["context"] is not None and "hit rate 1" in entry["faster"]:
            axis.axvline(entry["context"], color="grey", linewidth=1, linestyle=":")
            axis.annotate(
                f"faster than {entry['than']} from {entry['context']:.0f} on",
                (entry["context"], axis.get_ylim()[1]),
                rotation=90,
                verticalalignment="top",
                horizontalalignment="right",
                fontsize=8,
            )
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [str(context) for context in contexts])
    axis.set_ylim(0)
    axis.set_xlabel("context (tokens)")
    axis.set_ylabel("ms per token")
    axis.set_title(f"{report['target']}, {report['machine']}; load {report['load_average_1min'][1]:.1f}", fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--contexts", type=int, nargs="*", default=[256, 1024, 4096, 8000])
    parser.add_argument("--text", default="../shared/papers/alspec.txt", help="whose beginning is the context")
    parser.add_argument("--size", type=int, default=64, help="keys at each end that a prediction reads")
    parser.add_argument("--threshold", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=6, help="decoded per round")
    parser.add_argument("--note", default="")
    parser.add_argument("--output", default="benchmarks/results/alspec_groups.json")
    arguments = parser.parse_args()
    leads = os.environ.get("RANK", "0") == "0"
    load = os.getloadavg()[0]
    others = start_others(2, PROGRAM) if leads else []
    backend = AccelerateBackend(AccelerateConfig(device="cpu", threads=1, pin=True, timeout=1800))
    ranks = backend.ranks
    found = sessions(arguments, ranks, ranks.halves(), backend.device, backend.ops)
    tokenizer = Models(arguments.target, "cut", "auto", backend.ops, backend.device, torch.float32).target.tokenizer
    tokens = tokenizer.encode(Path(arguments.text).read_text(encoding="utf-8"))[: max(arguments.contexts) + 1]
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
                {"faster": name, "than": rival, "by": by, "context": crossover(rows, name, rival, by)}
                for by in ("median_s", "least_s")
                for name in names
                for rival in (ONE, SPREAD)
            ],
            "contexts": rows,
        }
        place = Path(arguments.output)
        place.write_text(json.dumps(report, indent=1) + "\n")
        try:
            place.with_suffix(".svg").write_text(plot_svg(report))
        except ImportError:
            print("no plot: matplotlib is not installed", file=sys.stderr)
        for entry in report["crossovers"]:  # type: ignore[attr-defined]
            print(f"{entry['faster']} against {entry['than']} by {entry['by']}: {entry['context'] or 'slower'}")
    ranks.close()
    return max((other.wait() for other in others), default=0)


if __name__ == "__main__":
    sys.exit(main())
