"""The rules of acceptance: which drafted tokens are kept, and the token after them.

A rule is a function of a drawn tree, of its rows (where the distributions come from) and of random numbers:
``rule(tree, rows, uniforms) -> (path, next token)``. Those of :data:`RULES` go by name, so that a backend may have a
kernel for one (:meth:`spec_sdk.ops.Ops.accept`); a verifier may bring its own. They run on the host, on rows that were
read there at once (:func:`pending`).

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from spec_sdk.errors import did_you_mean
from spec_sdk.ops.block_acceptance import block
from spec_sdk.ops.decisions import PendingDecision, ScoredTree
from spec_sdk.ops.draws import DrawnTree
from spec_sdk.ops.in_pass import follow
from spec_sdk.ops.residual import accepts
from spec_sdk.ops.rows import Decision, Left, Rows, Uniforms

Rule = Callable[[DrawnTree, Rows, Uniforms], Decision]


def multi_step(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Multi-step speculative sampling (SpecInfer, Miao et al. 2024), for children drawn in any way. Lossless.

    A node's draws are tried one after the other, each against what the rejected ones have left of the target's
    distribution. With p what is left, a token x drawn from q is accepted with min(1, p(x)/q(x)), else p becomes
    norm(max(p − q, 0)); a chosen x is accepted with p(x), else p loses x. Draws without replacement also take their
    token from q for the draws after them in their sequence. A token drawn twice is tried twice. On a chain this is
    speculative sampling (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2).

    Takes one random number for each draw of the tree, node by node, and one for the next token, whatever becomes of
    them. Raises UnusableLogits and ValueError, naming the node, for rows and draws that cannot be.
    """
    first_N1 = tree.first_draw_N1
    numbers = uniforms(first_N1[-1] + 1)
    path = [0]
    while True:
        node = path[-1]
        left = rows.left(node)
        child = accepted_child(tree, node, left, numbers[first_N1[node] :])
        if child is None:
            return path, left.draw(numbers[-1])
        path.append(child)


def accepted_child(tree: DrawnTree, node: int, left: Left, uniforms: Sequence[float]) -> int | None:
    """The child of ``node`` whose draw is the first to be accepted. ``uniforms`` begin with that of its first draw."""
    draws = tree.draws_N[node]
    for i, drawn in enumerate(draws):
        if accepts(left.p(tree.token_N[drawn.node]), left.q(drawn), uniforms[i]):
            return drawn.node
        left.reject(drawn, last=i + 1 == len(draws))
    return None


def naive(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Naive sampling on a tree (the baseline of SpecInfer, Miao et al. 2024): draw from the target, follow a match.

    Every emitted token is a draw of the target's, so the distribution holds for any tree, however it was drafted, and
    nothing is read of its draws. A drawn child x is accepted with p(x) only. Takes one random number for every token.
    """
    return follow(tree, lambda node: rows.left(node).draw(uniforms(1)[0]))


def greedy(tree: DrawnTree, rows: Rows, uniforms: Uniforms) -> Decision:
    """Follow the target's most probable tokens through any tree, however it was drafted. Takes no random numbers."""
    choices = rows.choices()
    return follow(tree, lambda node: choices[node])


RULES: Mapping[str, Rule] = {"multi_step": multi_step, "naive": naive, "block": block, "greedy": greedy}


def pending(rule: Rule, scored: ScoredTree) -> PendingDecision:
    """The decision of a rule on the host, once what it needs of the device is read.

    That is an integer for every node under ``greedy``, and all logits of the tree under any other rule: which rows it
    will ask for depends on its random numbers.
    """
    rows, choices_only = scored.rows, rule is greedy

    def decide(host: Sequence[torch.Tensor]) -> Decision:
        rows.hold(host, choices_only)
        return rule(scored.tree, rows, scored.uniforms)

    return PendingDecision.begun(lambda: PendingDecision(rows.unread(choices_only), decide))


def rule_named(name: str) -> Rule:
    """The rule of that name in :data:`RULES`. Raises ValueError with the nearest otherwise."""
    if name not in RULES:
        raise ValueError(f"unknown rule of acceptance '{name}'{did_you_mean(name, RULES)}")
    return RULES[name]
