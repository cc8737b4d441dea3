"""How much ``adaptive`` loses at worst, and still gains, on invented machines with noisy clocks, by ``policy.loss``.

    python -m benchmarks.adaptive_simulation

Plays the machines and the misleading texts of tests/policies, many seeds each, 8 answers of 64 tokens. No model runs
and no clock is read: a ratio is plain decoding's simulated time over the policy's. Writes
results/adaptive_simulation.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from typing import Any

from benchmarks.measuring import RESULTS, write_report
from spec_sdk.policy import AdaptiveConfig, AdaptivePolicy
from tests.policies.machine import Machine, Rate, play, steady
from tests.policies.test_adaptive import ADVERSARIES, LOOKUP, MACHINES, SMALL_DRAFT

ANSWERS, NEW_TOKENS = 8, 64
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
    parser.add_argument("--seeds", type=int, default=25)
    arguments = parser.parse_args()
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
    write_report(RESULTS / "adaptive_simulation.json", report)
    return 0


def simulate(loss: float, noise: float, seeds: int) -> dict[str, Any]:
    """Every machine with every misleading text, and the mean speed where drafting pays."""

    def ratio(machine: Machine, rate: Rate, seed: int) -> float:
        policy = AdaptivePolicy(AdaptiveConfig(loss=loss))
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
    sys.exit(main())
