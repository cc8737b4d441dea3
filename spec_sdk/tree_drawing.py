"""A verified token tree for people to look at: as text, and as SVG.

Legend: N tree nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from spec_sdk.contracts import Verdict

Spell = Callable[[int], str]
"""Token id → what it says."""

ROW, COLUMN, MARGIN, LONGEST = 26, 118, 14, 12
"""``LONGEST``: characters of a spelled token, quotes included: what a box of the drawing has room for."""


def tree_text(verdict: Verdict, spell: Spell, emitted: int | None = None) -> str:
    """One line per node in pre-order, as branches: index, token, ``end_N``, how often it was drawn and how.

    Accepted nodes are marked ``*``; the last line, ``+``, is the token that the target added. Of a verdict of which the
    answer took only ``emitted`` tokens, the nodes after its end are marked ``-`` and nothing was added.
    """
    tree, kept, dropped = verdict.tree, *_kept(verdict, emitted)
    rows = []
    for node, branch in enumerate(_branches(verdict)):
        mark = "*" if node in kept else "-" if node in dropped else " "
        shown = f"{mark} {node:3d}  {branch}{_shown(spell(tree.token_N[node]))}"
        rows.append((shown, f"end {tree.end_N[node]:3d}  {', '.join(_draws_of(verdict, node)) or 'pending token'}"))
    width = max(len(shown) for shown, _ in rows)
    lines = [f"{shown:<{width}}  {about}" for shown, about in rows]
    if not dropped:
        lines.append(f"+      {'   ' * (len(verdict.path) - 1)}└─ {_shown(spell(verdict.next_token))}")
    return "\n".join(lines)


def tree_svg(verdict: Verdict, spell: Spell, title: str, emitted: int | None = None) -> str:
    """A drawing, left to right, root first: accepted nodes and their edges filled, the target's own token dashed.

    ``emitted`` is that of :func:`tree_text`: what comes after the answer's end is drawn as if not accepted.
    """
    tree = verdict.tree
    row_N = _rows(verdict)
    accepted, dropped = _kept(verdict, emitted)
    last = verdict.path[-1]
    added = (tree.depth_N[last] + 1, max(row_N) + 1 if tree.draws_N[last] else row_N[last])
    width = MARGIN * 2 + COLUMN * (max(tree.depth, added[0]) + 1)
    height = MARGIN * 2 + ROW * (max(added[1], *row_N) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        'font-family="monospace" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{MARGIN}" y="{MARGIN + 6}">{escape(title)}</text>',
    ]
    for node in range(1, tree.size):
        parent = tree.parent_N[node]
        here, there = (tree.depth_N[node], row_N[node]), (tree.depth_N[parent], row_N[parent])
        parts.append(_edge(there, here, kept=node in accepted))
    parts.append(_edge((tree.depth_N[last], row_N[last]), added, kept=not dropped, dashed=True))
    for node in range(tree.size):
        tip = f"node {node}, end {tree.end_N[node]}: {', '.join(_draws_of(verdict, node)) or 'pending token'}"
        kept = node in accepted
        parts.append(_box((tree.depth_N[node], row_N[node]), spell(tree.token_N[node]), tip, kept))
    parts.append(_box(added, spell(verdict.next_token), "the target's own token", not dropped, dashed=True))
    return "\n".join([*parts, "</svg>\n"])


def _kept(verdict: Verdict, emitted: int | None) -> tuple[set[int], set[int]]:
    """The accepted nodes that the answer took; what else it dropped, -1 for the target's own token."""
    if emitted is None or emitted >= len(verdict.tokens):
        return set(verdict.path), set()
    return set(verdict.path[: emitted + 1]), {*verdict.path[emitted + 1 :], -1}


def _branches(verdict: Verdict) -> list[str]:
    """What stands before the token of every node: the lines that lead to it."""
    tree = verdict.tree
    before_N, below_N = [""], [""]
    for node in range(1, tree.size):
        parent = tree.parent_N[node]
        # a later sibling follows where this node's subtree does not end its parent's
        more = tree.end_N[node] < tree.end_N[parent]
        before_N.append(below_N[parent] + ("├─ " if more else "└─ "))
        below_N.append(below_N[parent] + ("│  " if more else "   "))
    return before_N


def _rows(verdict: Verdict) -> list[float]:
    """Vertical place of every node: leaves one below the other, a parent at the middle of its children."""
    tree = verdict.tree
    children: list[list[int]] = [[] for _ in range(tree.size)]
    for node in range(1, tree.size):
        children[tree.parent_N[node]].append(node)
    row_N, next_leaf = [0.0] * tree.size, 0
    for node in range(tree.size):
        if not children[node]:
            row_N[node], next_leaf = float(next_leaf), next_leaf + 1
    for node in reversed(range(tree.size)):
        if children[node]:
            row_N[node] = sum(row_N[child] for child in children[node]) / len(children[node])
    return row_N


def _draws_of(verdict: Verdict, node: int) -> list[str]:
    parent = verdict.tree.parent_N[node]
    if parent < 0:
        return []
    return [f"{draw.drafter} {draw.kind}".strip() for draw in verdict.tree.draws_N[parent] if draw.node == node]


def _shown(text: str) -> str:
    """The token as a Python literal, so that spaces and line breaks can be seen; long ones are cut."""
    shown = repr(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 2]}…{shown[0]}"


def _place(at: tuple[float, float]) -> tuple[float, float]:
    return MARGIN + COLUMN * at[0], MARGIN + ROW * (at[1] + 1)


def _edge(start: tuple[float, float], end: tuple[float, float], kept: bool, dashed: bool = False) -> str:
    (x1, y1), (x2, y2) = _place(start), _place(end)
    look = f'stroke="{"#1a7f37" if kept else "#bbb"}" stroke-width="{2 if kept else 1}"'
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1 + COLUMN - 22:g}" y1="{y1 + 9:g}" x2="{x2:g}" y2="{y2 + 9:g}" {look}{dash}/>'


def _box(at: tuple[float, float], text: str, tip: str, kept: bool, dashed: bool = False) -> str:
    x, y = _place(at)
    look = f'fill="{"#dafbe1" if kept else "#f6f6f6"}" stroke="{"#1a7f37" if kept else "#bbb"}"'
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x:g}" y="{y:g}" width="{COLUMN - 22}" height="18" rx="4" '
        f'{look}{dash}/><text x="{x + 5:g}" y="{y + 13:g}">{escape(_shown(text))}</text></g>'
    )
