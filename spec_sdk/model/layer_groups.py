"""Which layers run in parallel: strategies of layer-parallel drafting (EasySpec, appendix B, Table 6).

A strategy is a list of groups that names every layer of the draft model once, in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from spec_sdk.errors import UserError, did_you_mean

EASYSPEC = "easyspec"

TABLE_6: dict[tuple[int, int], str] = {
    (32, 2): "0 1-2 3-4 5-6 7-8 9-10 11-12 13-14 15-16 17-18 19-20 21-22 23-24 25-26 27-28 29-30 31",
    (32, 3): "0 1-3 4-6 7-9 10-12 13-15 16-18 19-21 22-24 25-27 28-30 31",
    (32, 4): "0 1-3 4-7 8-11 12-15 16-19 20-23 24-27 28-30 31",
    (32, 5): "0 1-3 4-8 9-13 14-18 19-23 24-28 29-30 31",
    (28, 4): "0 1-3 4-7 8-11 12-15 16-19 20-23 24-26 27",
}
"""EasySpec's Table 6 by (layers, N): Llama-3-8B-Instruct, and all Qwen draft models."""


def resolve_groups(groups: object, size: int, layers: int, where: str) -> list[list[int]]:
    """The groups that ``groups`` means for a draft model of ``layers`` layers.

    ``easyspec`` is :func:`easyspec_groups` of ``size``; a list of lists of layers is itself. Raises UserError, with
    ``where`` as the option's prefix, for anything else and for groups that are not all layers once, in order.
    """
    if isinstance(groups, str):
        if groups != EASYSPEC:
            raise UserError(f"{where}.groups: unknown strategy {groups!r}{did_you_mean(groups, [EASYSPEC])}")
        return easyspec_groups(layers, size)
    if not isinstance(groups, list | tuple) or not all(_is_group(group) for group in groups):
        raise UserError(
            f"{where}.groups: {groups!r} must be '{EASYSPEC}' or groups of layers such as [[0], [1, 2], [3]]"
        )
    return check_groups(groups, layers, f"{where}.groups")


def easyspec_groups(layers: int, size: int) -> list[list[int]]:
    """Groups of up to ``size`` layers: Table 6's where it has them, else :func:`even_groups`."""
    listed = TABLE_6.get((layers, size))
    if listed is None:
        return even_groups(layers, size)
    spans = [[int(end) for end in group.split("-")] for group in listed.split()]
    return [list(range(span[0], span[-1] + 1)) for span in spans]


def even_groups(layers: int, size: int) -> list[list[int]]:
    """Our rule for what Table 6 does not list: the first and the last layer alone, the others in groups of ``size``.

    If they do not divide evenly, there are as few groups as can be, and the shorter ones (by one layer) stand first and
    last in turn, beginning in front: the layers next to the ends, where fuzzy execution costs most, get the small
    groups, as in the table. 16 layers in fours: 0, 1-3, 4-7, 8-11, 12-14, 15. 30: 0, 1-4, 5-8, … 25-28, 29.
    """
    middle = max(layers - 2, 0)
    count = -(-middle // size)
    shorter = count and -middle % count
    length = [middle // count + (middle % count > 0)] * count if count else []
    for i in range(shorter):
        length[i // 2 if i % 2 == 0 else -1 - i // 2] -= 1
    groups, first = [[0]], 1
    for n in length:
        groups.append(list(range(first, first + n)))
        first += n
    return [*groups, [layers - 1]] if layers > 1 else groups


def check_groups(groups: Sequence[Sequence[int]], layers: int, where: str) -> list[list[int]]:
    """Return the groups as lists; UserError unless they list the layers 0 … layers-1 once each, in order."""
    listed = [layer for group in groups for layer in group]
    for expected, layer in enumerate(listed):
        if layer != expected:
            raise UserError(
                f"{where}: layer {layer} stands where layer {expected} should: list every layer once, in order"
            )
    if len(listed) != layers or not all(groups):
        raise UserError(f"{where}: the groups list {len(listed)} layers, the draft model has {layers}")
    return [list(group) for group in groups]


def runs_of_kind(kinds: Sequence[object]) -> list[tuple[int, int]]:
    """Maximal runs of equal neighbours, each (first, end): layers that can be computed as one.

    >>> runs_of_kind(["local", "local", "global", "local"])
    [(0, 2), (2, 3), (3, 4)]
    """
    borders = [i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]]
    return list(itertools.pairwise([0, *borders, len(kinds)]))


def describe_groups(groups: Sequence[Sequence[int]]) -> str:
    """Groups as Table 6 writes them: ``0, 1-3, 4``."""
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)


def _is_group(group: object) -> bool:
    layers = group if isinstance(group, list | tuple) else None
    return layers is not None and all(isinstance(i, int) and not isinstance(i, bool) for i in layers)
