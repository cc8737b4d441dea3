"""The three error bounds of ALSpec's Appendix A, evaluated for a run from its events.

All are about ‖H̃ − H‖, how far the last hidden state (before the final norm) is off that of the plain pass over the same
cache, for one pass; here divided by ‖H̃‖. Only layers that went on with a prediction add to them.

**Worst case** (A.1, Eq. 2): an error e entering layer i leaves it as at most (1 + αᵢ)((1 + f(R)βᵢ) e + δᵢ). δᵢ is the
measured ‖Âᵢ − Aᵢ‖ of the pass's worst row; measured before the output projection it is multiplied by ‖W_O‖. The paper's
closed form (Eq. 3) replaces αᵢ and βᵢ by their largest; layer by layer, as here, the bound is smaller. αᵢ, f(R)βᵢ and
‖W_O‖ are estimates (:mod:`spec_sdk.model.lipschitz`): the bound is one for small errors near the run's own states. It
grows as a product over the layers, and is as large as the paper says it is: too large to choose a threshold by.

**Linearised** (A.2): the same to first order in the constants, Σᵢ δᵢ (1 + Σ_{j≥i} αⱼ + Σ_{j>i} f(R)βⱼ) over the
accepted layers. The paper's line, with one α and β for all layers, is Σᵢ (1 + (N − i)(α + f(R)β)) δᵢ: it also drops the
αᵢ of the layer itself. (Its last line, (N + N²/2)(α + f(R)β)δ, does not follow from that one, whose sum is
(N + (N² − N)/2 · (α + f(R)β))δ.) It leaves out positive terms, so it is smaller than the worst case, and **no bound**
unless the constants are far below 1/N: it shows how little of the worst case a single detour through the layers makes.

**Probabilistic** (A.3): if errors are independent and unbiased, with probability 1 − δ at most
sqrt((4 − ln δ) Σᵢ λᵢ²‖H̃ᵢ‖² / c), the sum over the accepted layers. λᵢ is the relative error that was measured there
(in the verifier's space), which the threshold bounds; H̃ᵢ is the state that enters the layer. That an attention error of
λ‖A‖ moves the state by at most λ‖H̃ᵢ‖ is the paper's assumption. The paper leaves the constant c open; for the 2-norm
c = 1/2 serves (Pinelis, 1994, Theorem 3.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

DELTA = 0.05
C = 0.5


def error_bounds(passes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of the passes' ``attention`` fields (see events.py) the largest bounds; None if none were asked for.

    ``worst_case`` is None where it is too large for a float; ``worst_case_log10`` is its power of ten. Both are 0 and
    None if nothing was accepted. ``linearised`` and ``probabilistic`` are always numbers.
    """
    constants = next((p["constants"] for p in passes if p["constants"] is not None), None)
    if constants is None:
        return None
    # a number that overflowed is null in an event
    guessed = [p for p in passes if any(hit is not None for hit in p["hit"]) and None not in p["state_norm"]]
    if not guessed or any(None in layers for layers in constants.values()):
        return None
    log10 = max(_worst_case_log10(p, constants) for p in guessed)
    nothing = log10 == -math.inf
    return {
        "kind": "estimate",
        "relative_to": "norm of the last hidden state",
        "worst_case": 0.0 if nothing else 10**log10 if log10 < 300 else None,
        "worst_case_log10": None if nothing else log10,
        "linearised": max(_linearised(p, constants) for p in guessed),
        "probabilistic": max(_probabilistic(p) for p in guessed),
        "delta": DELTA,
        "constants": {
            "alpha": max(constants["mlp"]),
            "attention": max(constants["attention"]),
            "output": max(constants["output"]),
            "c": C,
            "largest_state": max(max(p["state_norm"]) for p in guessed),
        },
    }


def _worst_case_log10(attention: Mapping[str, Any], constants: Mapping[str, Sequence[float]]) -> float:
    """Eq. 2 carried through the layers in logarithms, since the products of deep models overflow."""
    error = -math.inf
    for i, hit in enumerate(attention["hit"]):
        error += math.log10(1 + constants["attention"][i])
        if hit and attention["difference"][i]:
            error = _log10_sum(error, math.log10(_entering(attention, constants, i)))
        error += math.log10(1 + constants["mlp"][i])
    return error - math.log10(attention["state_norm"][-1])


def _linearised(attention: Mapping[str, Any], constants: Mapping[str, Sequence[float]]) -> float:
    """The first-order terms of Eq. 3, each layer with its own constants; summed from the last layer to the first."""
    behind, bound = 0.0, 0.0
    for i in reversed(range(len(attention["hit"]))):
        behind += constants["mlp"][i]
        if attention["hit"][i] and attention["difference"][i]:
            bound += _entering(attention, constants, i) * (1 + behind)
        behind += constants["attention"][i]
    return bound / float(attention["state_norm"][-1])


def _entering(attention: Mapping[str, Any], constants: Mapping[str, Sequence[float]], layer: int) -> float:
    """δ of a layer in the residual stream: behind the output projection."""
    carried = constants["output"][layer] if attention["space"] == "heads" else 1.0
    return float(attention["difference"][layer]) * carried


def _probabilistic(attention: Mapping[str, Any]) -> float:
    # the last of the norms is that of the state leaving the last layer
    entering = attention["state_norm"][:-1]
    accepted = [
        (error * norm) ** 2
        for hit, error, norm in zip(attention["hit"], attention["error"], entering, strict=True)
        if hit and error is not None
    ]
    bound = math.sqrt((4 - math.log(DELTA)) * sum(accepted) / C)
    return bound / float(attention["state_norm"][-1])


def _log10_sum(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log10(1 + 10 ** (low - high))
