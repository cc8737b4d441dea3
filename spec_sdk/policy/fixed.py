"""The same depth in every cycle."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import LARGEST_TREE, Budget, Policy, Request
from spec_sdk.errors import UserError


@dataclass
class FixedConfig:
    """``depth``: tokens drafted per cycle along one path; 0 is plain decoding.

    ``max_nodes``: nodes of a cycle's tree, the root included; 1 is plain decoding.
    """

    depth: int = 5
    max_nodes: int = LARGEST_TREE


class FixedPolicy(Policy):
    """Draft to the same depth and the same number of nodes in every cycle."""

    name = "fixed"
    Config = FixedConfig
    config: FixedConfig

    def __init__(self, config: FixedConfig) -> None:
        if config.depth < 0:
            raise UserError(f"policy.depth: {config.depth} must be 0 (plain decoding) or more")
        if config.max_nodes < 1:
            raise UserError(f"policy.max_nodes: {config.max_nodes} must be 1 (plain decoding) or more")
        super().__init__(config)

    def budget(self, request: Request) -> Budget:
        return Budget(self.config.depth, self.config.max_nodes)
