"""Block verification on a chain (Sun et al. 2025)."""

from __future__ import annotations

from spec_sdk.contracts import Verifier


class BlockVerification(Verifier):
    """Accepts the longest block of a chain jointly: see :func:`spec_sdk.ops.block_acceptance.block`."""

    name = "block_verification"
    rule = "block"
    guarantee = "distribution"
    exact_when_greedy = True
    chains_only = True
