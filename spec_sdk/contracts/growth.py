"""The contract of a growth: which nodes a drafter with a model expands next.

Legend: K nodes that are fed together, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

from spec_sdk.contracts.request import Request
from spec_sdk.errors import CallOf, PluginFault
from spec_sdk.model.draft_levels import TreeShape
from spec_sdk.ops import DraftLogits
from spec_sdk.plugin import Plugin, not_inherited
from spec_sdk.tree import TokenTree, TreeBuilder

Growing = Generator[int, DraftLogits, TokenTree]
"""A tree that grows: ``logits = yield K`` feeds the tree's K youngest nodes to the draft model. Returns the tree."""


class Growth(Plugin, ABC):
    """Grows one request's tree, level by level; the drafter feeds the levels of all its requests together.

    Its options stand beside the drafter's own: ``drafter.growth=beam drafter.width=4``.
    """

    kind = "growth"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for described in ("fixed_shape", "kept_paths", "most_offered"):
            not_inherited(cls, described, getattr(Growth, described), ["grow"])

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def branches(self) -> bool:
        """Whether its trees may branch."""

    def fixed_shape(self, depth: int, max_nodes: int, request: Request) -> TreeShape | None:
        """The shape of the trees of :meth:`grow`, where it is the same whatever the logits. They may then be drafted
        without asking the host between levels.

        A node's children are its most probable tokens, as :meth:`DraftLogits.top` gives them, or drawn ones, all
        different, which ``grow`` then takes from :attr:`DraftLogits.drawn_KW`; where a node has fewer than are to be
        drawn, it draws those itself. Each level but the last is fed whole, in the order of creation. None, the default:
        it hangs on the logits. ``max_nodes``: as of the tree that is grown. Not inherited by a class that has its own
        ``grow``.
        """
        return None

    def kept_paths(self, request: Request) -> int | None:
        """How many of the most probable paths of every level are fed next, where :meth:`grow` does just that: nodes in
        the order of their parents, those of one parent the likeliest first, with an equal share of the tree's room for
        every level (``spec_sdk_growth.beam``).

        A drafter may then have several levels fed before they are asked for. What is asked for counts: a wrong number
        costs time and nothing else. None, the default: some other rule. Not inherited by a class that has its own
        ``grow``.
        """
        return None

    def most_offered(self, request: Request) -> int | None:
        """Of trees whose levels are :meth:`kept_paths`, how many nodes :meth:`grow` keeps of all children that the fed
        ones offer, whatever their level: the so many most probable by the product along their paths. 0: those paths
        themselves, and as many children of the last level.

        The tree may then be closed, and the target's pass begin, before :meth:`grow` has seen any of it. None, the
        default: some other rule. Not inherited by a class that has its own ``grow``.
        """
        return None

    @abstractmethod
    def grow(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        """Grow ``fed`` to at most ``depth`` levels below its root and return the closed tree.

        ``fed`` holds the nodes that are fed, in the order of their cache rows: add nodes to it, then yield how many of
        the youngest to feed, and get their logits, the repetition penalty applied; ``root`` are the root's, K = 1.
        :meth:`DraftLogits.top` gives each node's most probable children; :attr:`DraftLogits.full_KV` makes the rows
        [K, V] over the whole vocabulary, which a draw is made from and judged by.

        The closed tree may have more nodes (children that were never fed) or fewer (pruned ones). Neither may have more
        than ``fed.max_nodes``, which is more than ``depth``: a chain need not look at it. A yield feeds all nodes that
        were added since the last one. ``drafter`` is the name to note with every draw.

        A token chosen by a rule is ``chosen``, and its ``probability`` may be noted. A growth that notes it
        may be given logits of no rows, K = 0: no further level is worth its time. It closes the tree with what it has.

        One drawn at random is drawn with ``request.sampler`` and
        ``request.rng``, and keeps its distribution; what was drawn is never pruned, and whether a draw is made depends
        on nothing that it gives.
        """

    def growing(self, fed: TreeBuilder, root: DraftLogits, depth: int, request: Request, drafter: str) -> Growing:
        """:meth:`grow`, begun: what a drafter calls. Raises PluginFault where ``grow`` is no generator, where it yields
        another number than that of the nodes it added, and at its end where it returns no tree.
        """
        with CallOf("growth", self.name):
            begun: object = self.grow(fed, root, depth, request, drafter)
        if not isinstance(begun, Generator):
            kind = type(begun).__name__
            raise PluginFault(f"growth {self.name!r}: its grow is no generator (it has no yield); it returned a {kind}")
        return self._with_a_tree(begun, fed)

    def _with_a_tree(self, begun: Growing, fed: TreeBuilder) -> Growing:
        with CallOf("growth", self.name):
            tree: object = yield from self._feeding_what_it_added(begun, fed)
        if not isinstance(tree, TokenTree):
            raise PluginFault(f"growth {self.name!r}: its grow returned {tree!r}, which is no tree")
        return tree

    def _feeding_what_it_added(self, begun: Growing, fed: TreeBuilder) -> Growing:
        known, logits = fed.size, None
        while True:
            try:
                count = next(begun) if logits is None else begun.send(logits)
            except StopIteration as done:
                tree: TokenTree = done.value
                return tree
            added, known = fed.size - known, fed.size
            if count != added:
                fault = f"it feeds {count!r} node{'s' * (count != 1)}, and {added} were added since it last did"
                raise PluginFault(f"growth {self.name!r}: {fault}")
            logits = yield count
