"""What a policy grants, as far as requests have room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec_sdk.contracts.policy import Policy
from spec_sdk.contracts.request import Budget
from spec_sdk.engine.faults import budget_fault, count_fault
from spec_sdk.engine.turn import Active
from spec_sdk.errors import CallOf, PluginFault


def granted_budgets(
    policy: Policy, requests: Sequence[Active], context: int, deepest: int | None = None
) -> list[Budget]:
    """Depth and nodes of each request. ``context``: most tokens that the target holds; ``deepest``: the most tokens
    behind a root that it takes, if there is such a bound.

    Raises PluginFault, naming the policy, for budgets that cannot be, and what the policy raises.
    """
    if not requests:
        return []
    with CallOf("policy", policy.name):
        granted = policy.budgets([a.view for a in requests], [a.policy for a in requests])
    fault = count_fault(granted, len(requests), "budget")
    if fault := fault or next((fault for budget in granted if (fault := budget_fault(budget))), None):
        raise PluginFault(f"policy {policy.name!r}: {fault}")
    budgets = []
    for active, budget in zip(requests, granted, strict=True):
        request = active.view
        # the last of the remaining tokens is always the target's own, so drafting it would be wasted
        room = min(request.max_new_tokens - request.new_tokens, context - len(request.tokens)) - 1
        depth = max(0, min(budget.depth, budget.nodes - 1, room, budget.depth if deepest is None else deepest))
        budgets.append(budget if depth == budget.depth else replace(budget, depth=depth))
    return budgets
