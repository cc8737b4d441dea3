"""Options that several growths have.

Legend: V vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast, overload

import torch

from spec_sdk.contracts import LARGEST_TREE, SomeLogits, TreeShape, option
from spec_sdk.errors import UserError

Children = Literal["top_k", "with_replacement", "without_replacement"]


def width_option() -> int:
    """The option ``width``."""
    return option(1, "paths kept (and fed) per level", minimum=1, maximum=LARGEST_TREE - 1, means={1: "a chain"})


def children_option() -> str:
    """The option ``children``."""
    return option(
        "auto",
        "how a node's children are picked",
        choices={
            "auto": "top_k at temperature 0 and in trees of beam and dynamic; else drawn, in a tree all different",
            "top_k": "the most probable tokens",
            "with_replacement": "drawn",
            "without_replacement": "drawn, all different",
        },
    )


def temperature_option() -> float:
    """The option ``temperature``."""
    return option(
        1.0,
        "of draws: the draft's logits are divided by it, before what the request's sampling does to them",
        minimum=0.01,
        maximum=100,
    )


@overload
def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor: ...
@overload
def tempered(logits: torch.Tensor | SomeLogits, temperature: float) -> torch.Tensor | SomeLogits: ...
def tempered(logits: torch.Tensor | SomeLogits, temperature: float) -> torch.Tensor | SomeLogits:
    """Logits [V] to draw from: divided by ``temperature``, in float32 at least; at 1 they are left as they are."""
    if temperature == 1:
        return logits
    if isinstance(logits, SomeLogits):
        return replace(logits, logits_R=tempered(logits.logits_R, temperature))
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature


def check_draws(children: str, temperature: float, growth: str, pruned: bool = False) -> None:
    """Raise UserError for a ``temperature`` of draws where none is ever made: children are chosen, as those of a tree
    that ``growth`` prunes are."""
    if temperature == 1 or not (pruned or children == "top_k"):
        return
    why = f"growth={growth} chooses the children of a tree" if pruned else f"children={children} chooses them"
    raise UserError(
        f"drafter.temperature: {temperature:g} changes what is drawn, and {why}; leave it at 1, or use "
        "drafter.growth=auto drafter.children=auto"
    )


def check_kept(children: str, growth: str, width: int) -> None:
    """Raise UserError for children that are drawn at random where ``growth`` would prune them."""
    if children.endswith("replacement") and width > 1:
        raise UserError(
            f"drafter.children: {children} draws at random, and growth={growth} would prune what was drawn; use "
            "drafter.growth=auto, or static with drafter.widths"
        )


def children_of(option: str, greedy: bool, branches: bool, prunes: bool) -> Children:
    """What ``children`` means at this temperature. Greedy drafts gain nothing from draws that another run would repeat.

    A drawn token is accepted with min(1, p/q), a chosen one only with p: sampling, drawn trees are accepted more often
    (docs/growths.md).
    """
    if option != "auto":
        return cast(Children, option)
    if not greedy and not branches:
        return "with_replacement"
    return "top_k" if greedy or prunes else "without_replacement"


def shape_of(widths: Sequence[int], children: Children, temperature: float) -> TreeShape | None:
    """The shape of a tree of these widths, whatever its logits; None where draws may coincide.

    ``temperature``: of draws.
    """
    if children == "top_k":
        return TreeShape(tuple(widths))
    return None if children == "with_replacement" and max(widths) > 1 else TreeShape(tuple(widths), temperature)


def affordable_widths(widths: Sequence[int], depth: int, max_nodes: int) -> list[int]:
    """The ``widths`` of ``depth`` levels, the last entry for all deeper ones, made narrower to fit ``max_nodes`` nodes.

    ``max_nodes`` is more than ``depth``, so that a chain fits. Depth comes first, and of the widths those of the first
    levels: deeper levels become narrow before them.
    """
    kept = [widths[min(level, len(widths) - 1)] for level in range(depth)]
    for level in reversed(range(depth)):
        if _fits(kept, max_nodes):
            break
        narrower = range(1, kept[level])
        kept[level] = 1 + bisect_left(
            narrower, True, key=lambda width: not _fits([*kept[:level], width + 1, *kept[level + 1 :]], max_nodes)
        )
    return kept


def _fits(widths: Sequence[int], max_nodes: int) -> bool:
    """Whether a tree of these widths has at most ``max_nodes`` nodes, the root included."""
    size = level = 1
    for width in widths:
        level *= width
        size += level
        if size > max_nodes:
            return False
    return True
