"""The contract of a verifier: which path of a scored tree to keep.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar

import torch

from spec_sdk.contracts.request import Request, Verdict
from spec_sdk.guarantees import Guarantee
from spec_sdk.ops import Rule
from spec_sdk.ops.block_acceptance import require_chain
from spec_sdk.plugin import Plugin
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.tree import TokenTree


class Verifier(Plugin, ABC):
    """Says by which rule a path of a scored tree is kept, and what that guarantees.

    ``rule``: the name of one in :data:`spec_sdk.ops.RULES`, which a backend may have a kernel for; or a function of its
    own of the same signature, as a method ``rule(self, tree, rows, uniforms) -> (path, next token)``.
    """

    kind = "verifier"
    rule: str | Rule = ""
    guarantee: ClassVar[Guarantee]
    chains_only: ClassVar[bool] = False
    """Whether it takes chains only, no trees with branches."""
    exact_when_greedy: ClassVar[bool] = False
    """Whether at temperature 0 it keeps the target's own choices, whatever it guarantees when sampling."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, params: SamplingParams) -> None:
        """Raise UserError for sampling parameters that it cannot serve."""

    def guarantee_under(self, params: SamplingParams) -> Guarantee:
        """What this verifier guarantees with these sampling parameters: a sampled rule may be exact when greedy."""
        return "exact" if self.exact_when_greedy and params.temperature == 0 else self.guarantee

    def verify(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """The accepted path and the next token.

        ``logits_NV[i]`` are the target's logits for the token after node i, the repetition penalty applied. At
        temperature 0 a verifier that is ``exact_when_greedy`` follows the target's choices, whatever its rule. One that
        is no function of tree, rows and random numbers overrides this method. Raises ValueError, naming the node, for a
        tree with branches where it takes chains, and what the rule raises.
        """
        if self.chains_only:
            require_chain(tree, f"verifier {self.name!r}")
        sampler = request.sampler
        rule = "greedy" if self.exact_when_greedy and sampler.greedy else self.rule
        path, token = (sampler.ops or request.ops).accept(rule, tree, sampler.rows(tree, logits_NV), request.uniforms)
        return Verdict(path, token, tree)
