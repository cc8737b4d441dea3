"""The 2-D window of lookahead decoding (Fu et al. 2024): Jacobi trajectories over future positions.

Row 0 is a guess of the text to come. Each further row is what the target found most probable after the row before it,
one pass later and one position further on: column ``c`` holds a trajectory, level below level. In a token tree the
window is a comb. Row 0 is a chain from the root, and the levels of a column hang below the column's token in row 0::

    root ─ row0[1] ─ row0[2] ─ …        depth of level l in column c: c + l
      │       └ row1[1] ─ row2[1]       the root is the token of column 0 in row 0
      └ row1[0] ─ row2[0]

So a node sees the text, row 0 up to its column, and its own trajectory: the mask and the positions of the authors'
figure (media/mask.png of hao-ai-lab/LookaheadDecoding). Nodes with the same tokens before them are one node of the
tree, which changes no trajectory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from spec_sdk.contracts import TopTokens
from spec_sdk.tree import TokenTree, TreeBuilder


class LookaheadWindow:
    """``width`` columns of ``levels`` rows, W and N - 1 of the paper, for one request.

    It begins with row 0 alone, tokens of the text picked at random, and fills by a row with each pass. Every row that
    is added takes a column, so row 0 begins ``levels - 1`` columns wider.
    """

    def __init__(self, width: int, levels: int, text: Sequence[int]) -> None:
        self._width = width
        self._levels = levels
        # what it begins with changes the speed of the first steps, never what is answered
        self._choose = random.Random(0)
        self._text = text
        self.rows: list[list[int]] = [[self._pick() for _ in range(width + levels - 1)]]
        """``rows[l][c]``. The first of row 0 is a place holder for the text's last token."""

    def columns_within(self, nodes: int, depth: int) -> int:
        """How many columns, from the first on, a comb of ``nodes`` nodes besides the root and this depth has."""
        levels = len(self.rows)
        # the root is one of the first column's
        return max(0, min(len(self.rows[0]), (nodes + 1) // levels, depth - levels + 2))

    def add_to(self, tree: TreeBuilder, columns: int, drafter: str) -> None:
        """Add the comb of the first columns to a tree, whose root is the text's last token."""
        spine = 0
        for column in range(columns):
            if column:
                spine = grown(tree, spine, self.rows[0][column], drafter)
            node = spine
            for row in self.rows[1:]:
                node = grown(tree, node, row[column], drafter)

    def advance(self, tree: TokenTree, top: TopTokens) -> list[list[int]]:
        """Take the next row from what the target found most probable, and move on by a token.

        Returns the n-grams of ``levels + 1`` tokens that the columns have come to; none while the window fills. Columns
        that are not in the tree, for which there was no room, begin anew. Without any the window stays as it is.
        """
        best = top.token_NK[:, 0].tolist()
        new = [best[node] for node in self._last_nodes(tree)]
        if not new:
            return []
        full, columns = len(self.rows) == self._levels, len(new)
        rows = [*(row[:columns] for row in self.rows), new]
        rows[0][0] = tree.token_N[0]
        ngrams = [list(ngram) for ngram in zip(*rows, strict=True)] if full else []
        # every token moves a position nearer: in a full window to the row above, else to the column before
        self.rows = rows[1:] if full else [row[1:] for row in rows]
        for row in self.rows:
            row += [self._pick() for _ in range(self._width + self._levels - len(self.rows) - len(row))]
        return ngrams

    def _last_nodes(self, tree: TokenTree) -> list[int]:
        """The node of each column's last level, up to the first column that is not in the tree."""
        children = {
            (parent, token): node for node, (parent, token) in enumerate(zip(tree.parent_N, tree.token_N, strict=True))
        }
        found, spine = [], 0
        for column in range(len(self.rows[0])):
            if column:
                spine = children.get((spine, self.rows[0][column]), -2)
            node = spine
            for row in self.rows[1:]:
                node = children.get((node, row[column]), -2)
            if node < 0:
                break
            found.append(node)
        return found

    def _pick(self) -> int:
        return self._text[self._choose.randrange(len(self._text))]


def grown(tree: TreeBuilder, parent: int, token: int, drafter: str) -> int:
    """The node of ``token`` below ``parent``: a token that is there already is not chosen twice."""
    child = tree.child(parent, token)
    return tree.add(parent, token, "chosen", drafter=drafter) if child is None else child
