"""Naive sampling on a tree (the baseline of SpecInfer, Miao et al. 2024): sample from the target, follow a match."""

from __future__ import annotations

from spec_sdk.contracts import Verifier


class NaiveTree(Verifier):
    """Draws each next token from the target and follows the child that carries it: it needs no ``q_V``.

    A drawn child x is accepted with p(x) only, where ``multi_step`` accepts with min(1, p(x)/q(x)). See
    :func:`spec_sdk.ops.acceptance.naive`.
    """

    name = "naive_tree"
    rule = "naive"
    guarantee = "distribution"
    exact_when_greedy = True
