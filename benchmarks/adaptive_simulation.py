"""What ``adaptive`` loses at worst, and how near it comes to the best fixed tree, on invented machines.

    python -m benchmarks.adaptive_simulation

No model runs and no clock is read. Two questions, with the machines and texts of tests/policies, many seeds each:

- losses: misleading texts, 8 answers of 64 tokens, by ``policy.loss``. A ratio is plain decoding's simulated time over
  the policy's.
- regrets: the time per token over that of the best fixed depth and width in hindsight, less 1; ``begin``: in the first
  two answers of 256 tokens, ``later``: in those after them. With a cost curve, and where costs are learned.

Writes results/adaptive_simulation.json; --only makes one of the two anew and keeps the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import Counter
from typing import Any

from benchmarks.places import RESULTS
from spec_sdk.bench.reports import write_report
from spec_sdk.bench.scripts import run_script
from tests.policies.machine import Machine, Rate, play, steady
from tests.policies.test_adaptive import ADVERSARIES, LOOKUP, MACHINES, SMALL_DRAFT
from tests.policies.worlds import WORLDS, adaptive_in, best_fixed, run

ANSWERS, NEW_TOKENS = 8, 64
BEGIN, LATER, LONG = 2, 8, 256
"""Of regrets: answers at first, those after them, and tokens of each."""
PROMISE = 0.95
PAYING = {
    "small draft, acceptance 0.5": (SMALL_DRAFT, 0.5),
    "small draft, acceptance 0.8": (SMALL_DRAFT, 0.8),
    "lookup, acceptance 0.5": (LOOKUP, 0.5),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", type=float, nargs="+", default=[0.02, 0.025, 0.03, 0.035])
    parser.add_argument("--noises", type=float, nargs="+", default=[0.1, 0.3], help="standard deviation of each time")
    parser.add_argument("--seeds", type=int, default=25, help="of losses")
    parser.add_argument("--regret-seeds", type=int, default=6)
    parser.add_argument("--only", choices=["losses", "regrets"])
    arguments = parser.parse_args()
    path = RESULTS / "adaptive_simulation.json"
    report: dict[str, Any] = json.loads(path.read_text()) if arguments.only else {}
    if arguments.only != "regrets":
        report["losses"] = losses(arguments)
    if arguments.only != "losses":
        report["regrets"] = regrets(arguments.regret_seeds)
    write_report(path, report)
    return 0


def losses(arguments: argparse.Namespace) -> dict[str, Any]:
    """The worst runs, by ``policy.loss`` and the noise of the clock."""
    report: dict[str, Any] = {"answers": ANSWERS, "new_tokens": NEW_TOKENS, "seeds": arguments.seeds, "cases": []}
    for loss in arguments.losses:
        for noise in arguments.noises:
            case = simulate(loss, noise, arguments.seeds)
            report["cases"].append(case)
            worst, gains = case["worst"], ", ".join(f"{name} {gain:.2f}" for name, gain in case["gains"].items())
            print(
                f"loss {loss}, noise {noise:.0%}: worst {worst['ratio']:.3f} ({worst['machine']}, {worst['text']}), "
                f"{case['below_promise']} of {case['runs']} below {PROMISE}; {gains}",
                flush=True,
            )
    return report


def regrets(seeds: int) -> dict[str, Any]:
    """Every world of tests/policies/worlds.py, with a cost curve and without."""
    worlds: dict[str, Any] = {}
    for name in WORLDS:
        shape, seconds = best_fixed(name)
        worlds[name] = {"best_depth": shape[0], "best_width": shape[1], "best_speed": 1 / seconds}
        for costs, knows in (("curve", True), ("learned", False)):
            worlds[name][costs] = regret(name, knows, seconds, seeds)
        print(f"{name}: {worlds[name]}", flush=True)
    later = {costs: [world[costs]["later"] for world in worlds.values()] for costs in ("curve", "learned")}
    summary = {costs: {"mean": statistics.fmean(of), "worst": max(of)} for costs, of in later.items()}
    print(f"later regret: {summary}")
    return {"tokens": [BEGIN * LONG, LATER * LONG], "seeds": seeds, "later": summary, "worlds": worlds}


def regret(name: str, knows_costs: bool, best_s: float, seeds: int) -> dict[str, Any]:
    """Means over ``seeds`` runs, and the trees of the later cycles: the commonest depths and widths."""
    world, begin, later, shapes = WORLDS[name], list[float](), list[float](), Counter[tuple[int, int]]()
    for seed in range(seeds):
        policy = adaptive_in(world.machine, knows_costs)
        first = run(world, policy, BEGIN, LONG, seed)
        rest = run(world, policy, LATER, LONG, 1000 + seed)
        begin.append(first.seconds / first.tokens / best_s - 1)
        later.append(rest.seconds / rest.tokens / best_s - 1)
        shapes.update(zip(rest.budgets, rest.widths, strict=True))
    common = [[depth, width, count / shapes.total()] for (depth, width), count in shapes.most_common(4)]
    return {"begin": statistics.fmean(begin), "later": statistics.fmean(later), "shapes": common}


def simulate(loss: float, noise: float, seeds: int) -> dict[str, Any]:
    """Every machine with every misleading text, and the mean speed where drafting pays."""

    def ratio(machine: Machine, rate: Rate, seed: int) -> float:
        policy = adaptive_in(machine, knows_costs=False, loss=loss)
        noisy = dataclasses.replace(machine, noise=noise)
        return play(noisy, policy, [rate] * ANSWERS, NEW_TOKENS, seed=seed).ratio

    runs = [
        {"ratio": ratio(machine, rate, seed), "machine": name, "text": text, "seed": seed}
        for name, machine in MACHINES.items()
        for text, rate in ADVERSARIES.items()
        for seed in range(seeds)
    ]
    return {
        "loss": loss,
        "noise": noise,
        "runs": len(runs),
        "worst": min(runs, key=lambda run: run["ratio"]),  # type: ignore[arg-type,return-value]
        "below_promise": sum(run["ratio"] < PROMISE for run in runs),  # type: ignore[operator]
        "gains": {
            name: statistics.fmean(ratio(machine, steady(rate), seed) for seed in range(seeds))
            for name, (machine, rate) in PAYING.items()
        },
    }


if __name__ == "__main__":
    sys.exit(run_script(main))
