"""Options that several growths have, and what they may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from spec_sdk.contracts import LARGEST_TREE
from spec_sdk.errors import UserError, did_you_mean

Children = Literal["top_k", "with_replacement", "without_replacement"]
CHILDREN = ("auto", "top_k", "with_replacement", "without_replacement")


def check_width(width: int) -> None:
    """Raise UserError for a width outside its range."""
    if not 1 <= width < LARGEST_TREE:
        raise UserError(f"drafter.width: {width} must be between 1 and {LARGEST_TREE - 1}")


def check_children(children: str) -> None:
    """Raise UserError for an unknown way to pick children."""
    if children not in CHILDREN:
        raise UserError(f"drafter.children: unknown value {children!r}{did_you_mean(children, CHILDREN)}")


def check_kept(children: str, growth: str, width: int) -> None:
    """Raise UserError for children that are drawn at random where ``growth`` would prune them."""
    check_children(children)
    if children.endswith("replacement") and width > 1:
        raise UserError(
            f"drafter.children: {children} draws at random, and growth={growth} would prune what was drawn; use "
            "drafter.growth=auto, or static with drafter.widths"
        )


def children_of(option: str, greedy: bool, branches: bool, prunes: bool) -> Children:
    """What ``children`` means at this temperature. Greedy drafts gain nothing from draws that another run would repeat.

    A drawn token is accepted with min(1, p/q), a chosen one only with p: sampling, drawn trees are accepted more often
    (benchmarks/sampled_trees.py).
    """
    if option != "auto":
        return cast(Children, option)
    if not greedy and not branches:
        return "with_replacement"
    return "top_k" if greedy or prunes else "without_replacement"


def affordable_depth(widths: Sequence[int], max_nodes: int) -> int:
    """Whole levels that a static tree of these widths can have with at most ``max_nodes`` nodes."""
    size = level = 1
    for depth in range(max_nodes):
        level *= widths[min(depth, len(widths) - 1)]
        size += level
        if size > max_nodes:
            return depth
    return max_nodes
