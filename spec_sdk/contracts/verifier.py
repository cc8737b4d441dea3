"""The contract of a verifier: which path of a scored tree to keep.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from spec_sdk.contracts.request import Request, Verdict
from spec_sdk.errors import PluginFault, did_you_mean
from spec_sdk.guarantees import Guarantee
from spec_sdk.ops import RULES, Decision, Ops, PendingDecision, Rule, ScoredTree, UnscoredTree, attempt, read_decisions
from spec_sdk.ops.block_acceptance import require_chain
from spec_sdk.ops.in_pass import OnceDrawn
from spec_sdk.plugin import Plugin
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.tree import TokenTree


@dataclass(frozen=True)
class Ahead:
    """What a verifier says of a tree before its pass: the rule that is to decide, and the operations it runs on."""

    rule: str | Rule
    ops: Ops
    unscored: UnscoredTree


class Verifier(Plugin, ABC):
    """Says by which rule a path of a scored tree is kept, and what that guarantees.

    ``rule``: the name of one in :data:`spec_sdk.ops.RULES`, which a backend may have a kernel for; or a function of its
    own of the same signature, as a method ``rule(self, tree, rows, uniforms) -> (path, next token)``. Rules of several
    requests are followed with one read of the device. A verifier that is no function of tree, rows and random numbers
    overrides :meth:`verify_one`, or :meth:`verify` if it works on several requests at once.
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
        """What this verifier guarantees with these sampling parameters: a sampled rule may be exact when greedy, and
        when sampling no token is the model's own, so that none is exact.
        """
        if params.temperature == 0:
            return "exact" if self.exact_when_greedy else self.guarantee
        return "distribution" if self.guarantee == "exact" else self.guarantee

    def verify(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        """The verdict on each request's tree; see :meth:`verify_one`. An exception in its place ends that request.

        By the rule, with one read of the device for all; one after the other where :meth:`verify_one` is overridden.
        """
        if type(self).verify_one is Verifier.verify_one:
            return self._by_rule(trees, logits, requests)
        return [attempt(self.verify_one, *case) for case in zip(trees, logits, requests, strict=True)]

    def ahead(self, tree: TokenTree, request: Request) -> Ahead | None:
        """What is known of :meth:`verify_one` without logits, so that the pass itself may decide
        (:meth:`Ops.accept_in_pass <spec_sdk.ops.Ops.accept_in_pass>`), and :meth:`decided` makes the verdict of that.

        None where a verdict needs logits first: they are changed before it, or the sampler has no recipe for kernels,
        or :meth:`verify` or :meth:`verify_one` is overridden; and for what these would refuse.
        """
        own = type(self).verify is not Verifier.verify or type(self).verify_one is not Verifier.verify_one
        sampler = request.sampler
        if own or request.changes_logits or sampler.recipe is None:
            return None
        if isinstance(attempt(self._check_tree, tree, request), Exception):
            return None
        unscored = UnscoredTree(tree, sampler.recipe, OnceDrawn(request.uniforms))
        return Ahead(self._rule_for(request), sampler.ops or request.ops, unscored)

    def verify_one(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> Verdict:
        """The accepted path and the next token.

        ``logits_NV[i]`` are the target's logits for the token after node i, the repetition penalty applied. At
        temperature 0 a verifier that is ``exact_when_greedy`` follows the target's choices, whatever its rule. Raises
        ValueError, naming the node, for a tree with branches where it takes chains; UserError for sampling parameters
        that it cannot serve; and what the rule raises.
        """
        (verdict,) = self._by_rule([tree], [logits_NV], [request])
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def _by_rule(
        self, trees: Sequence[TokenTree], logits: Sequence[torch.Tensor], requests: Sequence[Request]
    ) -> list[Verdict | Exception]:
        pending: dict[int, PendingDecision] = {}
        together: dict[tuple[Ops, bool], dict[int, ScoredTree]] = {}
        for i, (tree, logits_NV, request) in enumerate(zip(trees, logits, requests, strict=True)):
            scored = attempt(self._scored, tree, logits_NV, request)
            if isinstance(scored, Exception):
                pending[i] = PendingDecision.failed(scored)
                continue
            ops = request.sampler.ops or request.ops
            together.setdefault((ops, self._by_choices(request)), {})[i] = scored
        for (ops, by_choices), group in together.items():
            rule = "greedy" if by_choices else self._own_rule()
            pending.update(zip(group, ops.accept(rule, list(group.values())), strict=True))
        decisions = read_decisions([pending[i] for i in range(len(trees))])
        return [
            decision if isinstance(decision, Exception) else attempt(self.decided, tree, decision)
            for tree, decision in zip(trees, decisions, strict=True)
        ]

    def _scored(self, tree: TokenTree, logits_NV: torch.Tensor, request: Request) -> ScoredTree:
        self._check_tree(tree, request)
        return ScoredTree(tree, request.sampler.rows(tree, logits_NV), request.uniforms)

    def _check_tree(self, tree: TokenTree, request: Request) -> None:
        self.check(request.sampler.params)
        if self.chains_only:
            require_chain(tree, f"verifier {self.name!r}")

    def _by_choices(self, request: Request) -> bool:
        return self.exact_when_greedy and request.sampler.greedy

    def _rule_for(self, request: Request) -> str | Rule:
        return "greedy" if self._by_choices(request) else self._own_rule()

    def _own_rule(self) -> str | Rule:
        if isinstance(self.rule, str) and self.rule not in RULES:
            lacks = f"its rule {self.rule!r} is unknown" if self.rule else "it has no rule, verify_one or verify"
            raise PluginFault(f"verifier {self.name!r}: {lacks}{did_you_mean(self.rule, RULES)}")
        return self.rule

    def decided(self, tree: TokenTree, decision: Decision) -> Verdict:
        """The verdict of what its rule decided. Raises PluginFault for what is no path and token."""
        if not isinstance(decision, tuple) or len(decision) != 2:
            raise PluginFault(f"verifier {self.name!r}: its rule returned {decision!r}, not a path and a token")
        path, token = decision
        return Verdict(path, token, tree)
