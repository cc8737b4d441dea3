"""The same depth in every cycle."""

from __future__ import annotations

from dataclasses import dataclass

from spec_sdk.contracts import LARGEST_TREE, Budget, Policy, Request, option


@dataclass
class FixedConfig:
    """Options of ``policy=fixed``."""

    depth: int = option(5, "tokens drafted per cycle along one path", minimum=0, means={0: "plain decoding"})
    max_nodes: int = option(
        LARGEST_TREE, "nodes of a cycle's tree, the root included", minimum=1, means={1: "plain decoding"}
    )


class FixedPolicy(Policy):
    """Draft to the same depth and the same number of nodes in every cycle."""

    name = "fixed"
    Config = FixedConfig
    config: FixedConfig

    def budget(self, request: Request) -> Budget:
        return Budget(self.config.depth, self.config.max_nodes)
