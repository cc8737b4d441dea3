"""Multi-step speculative sampling on any tree (SpecInfer, Miao et al. 2024), for children drawn in any way."""

from __future__ import annotations

from spec_sdk.contracts import Verifier


class MultiStep(Verifier):
    """Tries a node's draws one after the other: see :func:`spec_sdk.ops.acceptance.multi_step`."""

    name = "multi_step"
    aliases = ("specinfer",)
    rule = "multi_step"
    guarantee = "distribution"
    exact_when_greedy = True
