"""Invented worlds in which the best tree is another one each time: what passes cost, and what is accepted.

What wider passes cost was measured: of a bfloat16 model on a GPU and of a 4-bit model on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from spec_sdk.contracts import CostCurve, PassCosts, Policy
from spec_sdk.policy import AdaptiveConfig, AdaptivePolicy, FixedConfig, FixedPolicy
from tests.policies.machine import Machine, Played, Rate, alternating, play, steady, switching

FLAT = CostCurve({(0, 1): 1.0, (0, 8): 1.05, (0, 16): 1.3, (0, 64): 2.5})
STEEP = CostCurve({(0, 1): 1.0, (0, 8): 2.9, (0, 16): 5.7, (0, 64): 22.0})
DRAFT = 0.06
"""A level of one node of the draft, in passes of the target."""
WIDEST = 8
DEPTHS, WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10), (1, 2, 3, 4, 6, 8)
"""The fixed shapes to compare with; and plain decoding."""


@dataclass(frozen=True)
class World:
    """A machine, and texts: a chain's acceptance, and by which power of a level's width misses become fewer."""

    machine: Machine
    rate: Rate
    siblings: float


def _machine(curve: CostCurve, noise: float = 0.1) -> Machine:
    return Machine(
        draft_per_token=DRAFT, feed=0.002, prefill=0.01, noise=noise, widest=WIDEST, curve=curve, verify_per_token=0.0
    )


TEXTS: dict[str, tuple[Rate, float]] = {
    "good": (steady(0.8), 0.3),
    "good, siblings tell nothing": (steady(0.8), 0.02),
    "middling": (steady(0.6), 0.4),
    "siblings tell much": (steady(0.35), 1.0),
    "bad": (steady(0.05), 0.1),
    "turns bad": (switching(0.85, 0.1, at=128), 0.3),
    "turns good": (switching(0.1, 0.85, at=128), 0.3),
    "back and forth": (alternating(0.85, 0.3, every=64), 0.5),
}
WORLDS = {
    f"{name} curve, {text}": World(_machine(curve), *of_text)
    for name, curve in (("flat", FLAT), ("steep", STEEP))
    for text, of_text in TEXTS.items()
}


class Known:
    """A cost source that has the curves of a machine already; ``None`` has nothing."""

    catches_up = True
    longest_catch_up: int | None = None
    weighs_time = False
    expected_tokens = None
    unavailable = None

    def __init__(self, machine: Machine | None) -> None:
        self._machine = machine

    def kept(self) -> PassCosts | None:
        if self._machine is None or self._machine.curve is None:
            return None
        target = self._machine.curve
        # some other machine's seconds: only their relations count
        draft = {point: 3e-3 * self._machine.draft_per_token * seconds for point, seconds in target.points.items()}
        return PassCosts(
            CostCurve({point: 3e-3 * seconds for point, seconds in target.points.items()}), CostCurve(draft), 0.0
        )

    def measure(self) -> PassCosts | None:
        raise AssertionError("nobody should measure here")

    def seconds_of_plain_pass(self) -> float:
        raise AssertionError("nobody should measure here")


def adaptive_in(machine: Machine, knows_costs: bool, **options: float) -> AdaptivePolicy:
    """The policy as a pipeline prepares it."""
    policy = AdaptivePolicy(AdaptiveConfig(**options))  # type: ignore[arg-type]
    policy.prepare(Known(machine if knows_costs else None), branches=machine.widest > 1)
    return policy


def run(world: World, policy: Policy, answers: int, tokens: int, seed: int) -> Played:
    """So many answers of so many tokens."""
    return play(world.machine, policy, [world.rate] * answers, tokens, seed=seed, siblings=world.siblings)


@functools.cache
def best_fixed(name: str, answers: int = 30, tokens: int = 256) -> tuple[tuple[int, int], float]:
    """Depth and width (0, 0: plain decoding) of the fastest fixed tree in a world, and seconds per token with it."""
    world, quiet = WORLDS[name], dict[tuple[int, int], float]()
    world = dataclasses.replace(world, machine=dataclasses.replace(world.machine, noise=0.0))
    for depth, width in [(0, 0), *((d, w) for d in DEPTHS for w in WIDTHS)]:
        played = run(world, FixedPolicy(FixedConfig(depth, 1 + depth * width)), answers, tokens, seed=0)
        quiet[depth, width] = played.seconds / played.tokens
    shape = min(quiet, key=lambda shape: quiet[shape])
    return shape, quiet[shape]
