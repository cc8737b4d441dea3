"""First-party verifiers, of the token level and of the attention level."""

from __future__ import annotations

from spec_sdk.contracts import Plugin
from spec_sdk.hookspecs import hookimpl


@hookimpl
def spec_sdk_plugins() -> list[type[Plugin]]:
    from spec_sdk_verifiers.block_verification import BlockVerification
    from spec_sdk_verifiers.chain_rejection import ChainRejection
    from spec_sdk_verifiers.greedy import Greedy
    from spec_sdk_verifiers.l2_threshold import L2Threshold
    from spec_sdk_verifiers.multi_step import MultiStep
    from spec_sdk_verifiers.naive_tree import NaiveTree
    from spec_sdk_verifiers.static import Static
    from spec_sdk_verifiers.typical import Typical

    return [Greedy, ChainRejection, MultiStep, NaiveTree, BlockVerification, Typical, L2Threshold, Static]
