"""Token trees: what a drafter proposes and the target scores in one pass.

A tree is flat and in DFS pre-order. Node 0, the root, is the pending token. Node ``i`` is an ancestor of ``j``, or
``j`` itself, exactly when ``i <= j < end_N[i]``: in pre-order a node's start is its own index, so one integer per node
carries the whole N x N attention mask (FlashSpecInfer keeps start and end; the start is redundant here).

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from spec_sdk.counted import counted
from spec_sdk.errors import did_you_mean
from spec_sdk.ops.draws import DRAW_KINDS, DraftDistribution, Draw, DrawKind, misnumbered

__all__ = [
    "BuiltTree",
    "DraftDistribution",
    "Draw",
    "DrawKind",
    "TokenTree",
    "TreeBuilder",
    "same_distribution",
]


@dataclass(frozen=True)
class TokenTree:
    """A closed token tree in pre-order. Build it with :class:`TreeBuilder` or :meth:`chain`.

    ``draws_N[i]`` lists the draws made at node ``i`` in draw order, duplicates kept: a child drawn twice appears twice.

    Raises ValueError, naming the node, for arrays that are no tree in pre-order: a token that is negative or no int, a
    parent that is unknown, comes later or closes a cycle, a wrong depth or end.
    """

    token_N: tuple[int, ...]
    parent_N: tuple[int, ...]
    depth_N: tuple[int, ...]
    end_N: tuple[int, ...]
    draws_N: tuple[tuple[Draw, ...], ...]

    def __post_init__(self) -> None:
        _check_arrays(self)

    @property
    def size(self) -> int:
        """Number of nodes N, the root included."""
        return len(self.token_N)

    @property
    def depth(self) -> int:
        """Depth of the deepest node: 0 for a root alone (a plain decoding step)."""
        return max(self.depth_N)

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root to ``node``, both included."""
        path = [node]
        while path[-1] != 0:
            path.append(self.parent_N[path[-1]])
        return path[::-1]

    def path_along(self, tokens: Sequence[int]) -> list[int]:
        """The nodes along which ``tokens`` lead from the root, which comes first, as far as the tree has them."""
        path = [0]
        for token in tokens:
            child = next((draw.node for draw in self.draws_N[path[-1]] if self.token_N[draw.node] == token), None)
            if child is None:
                break
            path.append(child)
        return path

    @property
    def first_draw_N1(self) -> list[int]:
        """Per node, the number of its first draw among all, node by node and in draw order; and how many there are.

        A step of rejection sampling takes one random number for each draw, in this order, and one more.
        """
        return [0, *accumulate(len(draws) for draws in self.draws_N)]

    @staticmethod
    def root_only(token: int) -> TokenTree:
        """The tree of a plain decoding step: the pending token and nothing else."""
        return TokenTree((token,), (-1,), (0,), (1,), ((),))

    @staticmethod
    def chain(root: int, tokens: list[int], kind: DrawKind = "chosen", drafter: str = "") -> TokenTree:
        """A tree without branches. For drawn tokens, which need a ``q_V`` each, use :class:`TreeBuilder`."""
        builder = TreeBuilder(root)
        node = 0
        for token in tokens:
            node = builder.add(node, token, kind, drafter=drafter)
        return builder.build().tree


@dataclass(frozen=True)
class BuiltTree:
    """A closed tree and where each node went: ``preorder[slot]`` is the tree index of the node created as ``slot``."""

    tree: TokenTree
    preorder: tuple[int, ...]


@dataclass(frozen=True)
class _Sequence:
    """Draws without replacement at one node that belong together: where they come from, and the tokens so far."""

    source: torch.Tensor | DraftDistribution
    drafter: str
    tokens: set[int]


@dataclass
class TreeBuilder:
    """A tree that is still growing. Nodes are numbered in creation order, which is also their cache slot order.

    ``add`` merges: drawing a token that the parent already has as a child records one more draw of that child.
    ``max_nodes``: most nodes that it may have, the root included. A drafter gives it its budget's ``nodes``.
    """

    root: int
    max_nodes: int = sys.maxsize
    token: list[int] = field(init=False)
    parent: list[int] = field(init=False)
    depth: list[int] = field(init=False)
    draws: list[list[Draw]] = field(init=False)

    def __post_init__(self) -> None:
        self.root = _whole(self.root, 0)
        self.token, self.parent, self.depth, self.draws = [self.root], [-1], [0], [[]]
        self._child: list[dict[int, int]] = [{}]
        self._sequences: dict[int, dict[int, _Sequence]] = {}

    @property
    def size(self) -> int:
        return len(self.token)

    @property
    def room(self) -> int:
        """How many more nodes it may have."""
        return self.max_nodes - self.size

    def add(
        self,
        parent: int,
        token: int,
        kind: DrawKind,
        q_V: torch.Tensor | DraftDistribution | None = None,
        drafter: str = "",
        sequence: int | None = None,
        probability: float | None = None,
    ) -> int:
        """Record that ``token`` was drawn at node ``parent``; return the child's creation index.

        All draws without replacement at one node are one sequence, number 0, unless ``sequence`` says otherwise. They
        are of different tokens, by one drafter and from one distribution: each time the same object, the same memory,
        or a :class:`DraftDistribution` once and its own ``q_V`` another time. A second sequence must be asked for by
        number, so that a drafter that gives copies of its distribution is refused and not misread. ``probability``:
        what the drafter of a chosen token takes to be its chance after ``parent``.

        Raises ValueError, naming the node, for an unknown parent or kind, a token that is negative or no whole number,
        a drawn token without its ``q_V`` or outside it, a draw that cannot belong to its sequence, and a node more than
        ``max_nodes``.
        """
        size = len(self.token)
        if type(token) is not int:
            token = _whole(token, size)
        if not 0 <= parent < size:
            raise ValueError(
                f"tree node {size}: parent {parent} does not exist yet (the tree has {counted(size, 'node')})"
            )
        if token < 0:
            raise ValueError(f"tree node {size}: token id {token} is negative")
        # most tokens of most trees are chosen, a dozen in every step
        plain = kind == "chosen" and q_V is None and sequence is None
        known, sequence = (None, None) if plain else self._known_draw(parent, token, kind, q_V, drafter, sequence)
        node = self._child[parent].get(token)
        if node is None:
            if size >= self.max_nodes:
                raise ValueError(f"tree node {size}: the tree may have {self.max_nodes} nodes, the root included")
            node = size
            self._child[parent][token] = node
            self.token.append(token)
            self.parent.append(parent)
            self.depth.append(self.depth[parent] + 1)
            self.draws.append([])
            self._child.append({})
        if plain:
            self.draws[parent].append(Draw.chosen(node, drafter, probability))
            return node
        if sequence is not None and q_V is not None:
            if known is None:
                known = _Sequence(q_V, drafter, set())
                self._sequences.setdefault(parent, {})[sequence] = known
            known.tokens.add(token)
            # one object for the whole sequence, whichever of its forms the drafter gave
            q_V = known.source
        self.draws[parent].append(Draw(node, kind, q_V, drafter, sequence, probability))
        return node

    def _known_draw(
        self,
        parent: int,
        token: int,
        kind: DrawKind,
        q_V: torch.Tensor | DraftDistribution | None,
        drafter: str,
        sequence: int | None,
    ) -> tuple[_Sequence | None, int | None]:
        """The sequence that a draw at ``parent`` goes on with, and its number. Raises what :meth:`add` says."""
        if kind not in DRAW_KINDS:
            raise ValueError(f"tree node {self.size}: unknown kind {kind!r}{did_you_mean(str(kind), DRAW_KINDS)}")
        if (q_V is None) != (kind == "chosen"):
            raise ValueError(
                f"tree node {self.size}: a drawn token needs its q_V, a chosen one has none (kind {kind!r})"
            )
        if q_V is not None and token >= q_V.shape[0]:
            raise ValueError(f"tree node {self.size}: token {token} lies outside its q_V of {q_V.shape[0]} tokens")
        if kind == "without_replacement" and sequence is None:
            sequence = 0
        if (sequence is None) == (kind == "without_replacement") or (sequence is not None and sequence < 0):
            raise ValueError(f"tree node {self.size}: {misnumbered(kind, sequence)}")
        known = None if sequence is None else self._sequences.get(parent, {}).get(sequence)
        if known is not None and (fault := _misfit(known, token, q_V, drafter)):
            raise ValueError(
                f"tree node {self.size}: {fault} (draws without replacement at node {parent}, sequence {sequence})"
            )
        return known, sequence

    def add_path(self, tokens: Sequence[int], drafter: str = "") -> None:
        """Choose ``tokens``, one below the other from the root, as far as there is room. What of the path is there
        already is not chosen twice.
        """
        node = 0
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                if self.room < 1:
                    return
                child = self.add(node, token, "chosen", drafter=drafter)
            node = child

    def child(self, parent: int, token: int) -> int | None:
        """The creation index of node ``parent``'s child ``token``; None if it has no such child."""
        return self._child[parent].get(token)

    def next_sequence(self, parent: int) -> int:
        """The least number above those of all sequences of draws without replacement at node ``parent``."""
        return max(self._sequences.get(parent, {}), default=-1) + 1

    def intervals(self) -> tuple[list[int], list[int]]:
        """Pre-order ``start`` and ``end`` of every node, indexed by creation order, in O(N)."""
        size = self.size
        subtree = [1] * size
        for node in range(size - 1, 0, -1):
            subtree[self.parent[node]] += subtree[node]
        start = [0] * size
        next_free = [1] * size
        for node in range(1, size):
            parent = self.parent[node]
            start[node] = next_free[parent]
            next_free[parent] += subtree[node]
            next_free[node] = start[node] + 1
        return start, [s + n for s, n in zip(start, subtree, strict=True)]

    def build(self) -> BuiltTree:
        """Close the tree: nodes in pre-order, children in the order of their first draw."""
        start, end = self.intervals()
        slot_of = [0] * self.size
        for slot, position in enumerate(start):
            slot_of[position] = slot
        token, parent, depth, draws = self.token, self.parent, self.depth, self.draws
        tree = TokenTree(
            token_N=tuple([token[s] for s in slot_of]),
            parent_N=(-1, *[start[parent[s]] for s in slot_of[1:]]),
            depth_N=tuple([depth[s] for s in slot_of]),
            end_N=tuple([end[s] for s in slot_of]),
            draws_N=tuple([tuple([draw.of_node(start[draw.node]) for draw in draws[s]]) for s in slot_of]),
        )
        return BuiltTree(tree, tuple(start))


def same_distribution(one: torch.Tensor | DraftDistribution, other: torch.Tensor | DraftDistribution) -> bool:
    """Whether two draws come from one distribution [V]: one object or memory, or a draft distribution and its ``q_V``.

    Equal numbers elsewhere in memory are not the same: two distributions may well be equal. Works out nothing.
    """
    if one is other:
        return True
    made, other_made = (source.made if isinstance(source, DraftDistribution) else source for source in (one, other))
    if made is None or other_made is None:
        return False
    return made is other_made or _memory(made) == _memory(other_made)


def _memory(q_V: torch.Tensor) -> tuple[object, ...]:
    return q_V.device, q_V.data_ptr(), q_V.dtype, q_V.shape, q_V.stride()


def _whole(token: int, node: int) -> int:
    """``token`` as an int, also of one of NumPy or in a tensor: answers are compared and written as JSON."""
    try:
        return int(operator.index(token))
    except TypeError as error:
        raise ValueError(f"tree node {node}: token id {token!r} is no whole number") from error


def _misfit(
    sequence: _Sequence, token: int, source: torch.Tensor | DraftDistribution | None, drafter: str
) -> str | None:
    """Why a draw cannot belong to ``sequence``; None if it can."""
    if source is None or not same_distribution(sequence.source, source):
        return (
            "it comes from another distribution than the draws before it; give all of them the same object, "
            "or, for a second sequence, a number of its own"
        )
    if drafter != sequence.drafter:
        return f"it is drawn by {drafter!r}, those before it by {sequence.drafter!r}"
    if token in sequence.tokens:
        return f"token {token} was drawn before"
    return None


def _check_arrays(tree: TokenTree) -> None:
    """O(N), and no copies: every tree that is built is checked."""
    parent_N, depth_N, end_N, size = tree.parent_N, tree.depth_N, tree.end_N, len(tree.token_N)
    if not size:
        raise ValueError("a token tree has a root at least: token_N is empty")
    for name in ("parent_N", "depth_N", "end_N", "draws_N"):
        length = len(getattr(tree, name))
        if length != size:
            raise ValueError(f"tree node {min(length, size)}: {name} has {length} entries, token_N has {size}")
    if parent_N[0] != -1 or depth_N[0] != 0:
        raise ValueError(
            f"tree node 0 is the root: its parent is {parent_N[0]}, not -1, or its depth {depth_N[0]}, not 0"
        )
    for node, token in enumerate(tree.token_N):
        if type(token) is not int:
            raise ValueError(f"tree node {node}: token id {token!r} is no int")
        if token < 0:
            raise ValueError(f"tree node {node}: token id {token} is negative")
    for node in range(1, size):
        parent = parent_N[node]
        if not 0 <= parent < node:
            raise ValueError(f"tree node {node}: {_wrong_parent(parent_N, node)}")
        if depth_N[node] != depth_N[parent] + 1:
            raise ValueError(f"tree node {node} has depth {depth_N[node]}, its parent {parent} has {depth_N[parent]}")
    subtree = [1] * size
    for node in range(size - 1, 0, -1):
        subtree[parent_N[node]] += subtree[node]
    for node in range(size):
        end, parent = node + subtree[node], parent_N[node]
        if end_N[node] != end:
            raise ValueError(
                f"tree node {node} has {subtree[node] - 1} descendants, so its end is {end}, not {end_N[node]}"
            )
        if parent >= 0 and end > end_N[parent]:
            raise ValueError(
                f"tree node {node}: not in pre-order, its subtree reaches beyond that of its parent {parent}"
            )


def _wrong_parent(parent_N: tuple[int, ...], node: int) -> str:
    parent = parent_N[node]
    if not 0 <= parent < len(parent_N):
        return f"its parent {parent} does not exist (the tree has {counted(len(parent_N), 'node')})"
    above = {node: None}
    while 0 <= parent < len(parent_N) and parent not in above:
        above[parent] = None
        parent = parent_N[parent]
    if parent == node:
        return f"it lies on a cycle of parents, {' → '.join(str(i) for i in [*above, node])}"
    return f"it comes before its parent {parent_N[node]}"
