"""What drafters with a session of their own share: what was committed is fed, and trees grow behind it.

Legend: K nodes of a level.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from spec_sdk.contracts import Budget, Drafter, DraftLogits, Growth, Request, TreeShape, TreesTold
from spec_sdk.errors import of_request
from spec_sdk.model.context_vocabulary import ContextVocabulary
from spec_sdk.model.draft_levels import DraftedLevel
from spec_sdk.model.models import Models
from spec_sdk.ops.grown_paths import ClosedTrees, GrownPaths, PathDraws, ProbablePaths, TreeClosing
from spec_sdk.plugin import not_inherited
from spec_sdk.registry import Registry
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.growing_draft import GrowingDraft, advanced
from spec_sdk_drafters.levels_at_once import Tries, draws_at_once, draws_of, grow_known, known_logits, uniforms_of

GROWTHS = (
    "beam, the width best paths of every level; dynamic, the max_nodes best paths of all lengths; static, widths; "
    "auto: beam, or, where children are drawn, width paths that part at the root"
)


LEAST_ROOM = 8
"""Nodes that a tree may have whatever the one before had: a pass over so many takes hardly longer than over one."""


class GrowingSession(Protocol):
    """What a tree grows in: a session of a draft model or of a draft head."""

    context_vocabulary: ContextVocabulary | None

    def grow(self, slots: Sequence[int], trees: Sequence[TreeBuilder], new_nodes: Sequence[int]) -> list[DraftLogits]:
        """Feed each tree's ``new_nodes`` youngest nodes; return their logits."""


class GrowingDrafter(Drafter):
    """Feeds what was committed, then lets a growth expand the trees. Its config has ``growth``, a part.

    A subclass sets ``session`` and says what pass gives a root's logits.
    """

    session: GrowingSession

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for described in ("grows_paths", "grown_paths"):
            not_inherited(cls, described, getattr(GrowingDrafter, described), ["root_pass"])

    def __init__(self, config: Any, models: Models) -> None:
        super().__init__(config, models)
        self.growth: Growth = Registry.discover().part("growth", config.growth)
        self.branches = self.growth.branches
        self.vocabulary = models.target.executor.vocabulary
        self._drafts: dict[int, GrowingDraft] = {}
        # that were fed of a slot's tree before
        self._levels: dict[int, int] = {}
        self._tries: dict[int, Tries] = {}
        # nodes of a slot's tree before
        self._sizes: dict[int, int] = {}
        self._told = False

    @property
    def drafts_at_once(self) -> bool:
        """Whether :meth:`levels_at_once` may do anything."""
        return False

    def levels_at_once(
        self,
        requests: Sequence[Request],
        shape: TreeShape,
        roots: Sequence[DraftLogits],
        draws: Sequence[Sequence[float]],
        tell: TreesTold | None,
    ) -> list[list[DraftedLevel]] | None:
        """All levels of trees of one shape, of each request, from the logits of its root; None, the default, where the
        model is fed level by level. ``draws``: of each request, where children are drawn, a random number for each
        node, level by level, and the numbers of its sampling. ``tell``: given the trees before they are read.
        """
        return None

    def before_growing(self, requests: Sequence[Request]) -> None:
        """What must be done with the trees of the round before. By default nothing."""

    @abstractmethod
    def room(self, request: Request) -> int:
        """Most levels that may be drafted behind the request's tokens: what the model's context leaves."""

    @abstractmethod
    def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[DraftLogits]]:
        """The pass that feeds what each request has committed since it was last asked; it gives the logits after each
        last token, K = 1.

        Called for requests that have room, and run at once.
        """

    @property
    def grows_paths(self) -> bool:
        """Whether :meth:`grown_paths` may do anything."""
        return False

    def grown_paths(self, requests: Sequence[Request], paths: Sequence[ProbablePaths]) -> list[GrownPaths] | None:
        """The pass of :meth:`root_pass`, with the levels of each request's ``paths`` fed besides where that is one
        call, maybe more of them than it asks for. None, the default, and nothing done, where the model is fed level by
        level.
        """
        return None

    def keep_grown(self, request: Request, tree: TreeBuilder, nodes: int) -> None:
        """Of the levels that :meth:`grown_paths` fed, the first ``nodes`` are nodes 1 … of ``tree``."""

    def propose(self, requests: Sequence[Request], budgets: Sequence[Budget]) -> list[TokenTree]:
        self.before_growing(requests)
        self._told = False
        depths = [min(budget.depth, self.room(request)) for request, budget in zip(requests, budgets, strict=True)]
        able = [i for i, depth in enumerate(depths) if depth >= 1]
        drafts: dict[int, GrowingDraft] = {}
        if (context := self.session.context_vocabulary) is not None:
            for request in (requests[i] for i in able):
                context.follow(request.slot, request.tokens, request.stop_ids)
        ahead = self._grown_paths(requests, budgets, depths, able)
        if self._told:
            budgets = [self._with_room(*case) for case in zip(requests, budgets, strict=True)]
        roots = [grown.root for grown in ahead or ()]
        if able and ahead is None:
            roots = self.root_pass([requests[i] for i in able])()
        known = self._known_levels(requests, budgets, depths, dict(zip(able, roots, strict=True)))
        for i, logits in zip(able, roots, strict=True):
            request, tree = requests[i], TreeBuilder(requests[i].pending_token, budgets[i].nodes)
            root = known[i][1][0] if i in known else request.process_draft(logits.within(self.vocabulary), [()])
            growing = self.growth.growing(tree, root, depths[i], request, self.name)
            self._drafts[request.slot] = drafts[i] = GrowingDraft(
                request, tree, growing, root, self.vocabulary, budgets[i]
            )
        for i, levels_and_logits in known.items():
            grow_known(drafts[i], *levels_and_logits)
        unknown = [draft for i, draft in drafts.items() if i not in known]
        if ahead is not None:
            asking = [draft for draft, grown in zip(drafts.values(), ahead, strict=True) if self._follow(draft, grown)]
        else:
            asking = advanced(unknown, [None] * len(unknown))
        while asking:
            # a level of every tree in one pass
            slots, grown = [draft.request.slot for draft in asking], [draft.tree for draft in asking]
            levels = self.session.grow(slots, grown, [draft.asked for draft in asking])
            asking = advanced(asking, [logits.within(self.vocabulary) for logits in levels])
        self._levels.update((draft.request.slot, draft.levels) for draft in drafts.values())
        self._sizes.update((draft.request.slot, draft.closed.size) for draft in drafts.values())
        return [
            drafts[i].closed if i in drafts else TokenTree.root_only(request.pending_token)
            for i, request in enumerate(requests)
        ]

    def _grown_paths(
        self, requests: Sequence[Request], budgets: Sequence[Budget], depths: Sequence[int], able: Sequence[int]
    ) -> list[GrownPaths] | None:
        """What :meth:`grown_paths` gives of those that are ``able``, whose growth says what it will ask for."""
        if not (able and self.grows_paths):
            return None
        together, tells = [requests[i] for i in able], len(able) == len(requests)
        paths = [self._paths(requests[i], budgets[i], depths[i], tells) for i in able]
        known = [own for own in paths if own is not None]
        if len(known) == len(paths):
            return self.grown_paths(together, known)
        return self._drawn_path(together[0], budgets[able[0]], depths[able[0]]) if len(able) == 1 else None

    def _paths(self, request: Request, budget: Budget, depth: int, tells: bool) -> ProbablePaths | None:
        """The paths that a request's growth will ask for; None where it does not say so, or all levels are drafted
        behind the root. ``tells``: whether the tree may be told of before it is read.
        """
        if request.changes_logits or self._known_shape(request, budget, depth) is not None:
            return None
        width = self.growth.kept_paths(request)
        if width is None:
            return None
        # what feeds levels without asking does not see where one is worth less than it costs
        last = self._levels.get(request.slot) if budget.level_cost else None
        most_levels = None if last is None else last + 1
        paths = ProbablePaths(width, depth, budget.nodes, budget.level_cost, most_levels, self.vocabulary)
        return replace(paths, closing=self._closing(request, budget)) if tells else paths

    def _drawn_path(self, request: Request, budget: Budget, depth: int) -> list[GrownPaths] | None:
        """A chain that is drawn in the call that feeds it."""
        if request.changes_logits or self._known_shape(request, budget, depth) is not None:
            return None
        shape, recipe = self.growth.fixed_shape(depth, budget.nodes, request), request.sampler.recipe
        if shape is None or shape.draw_temperature is None or max(shape.widths) > 1:
            return None
        if recipe is None or request.sampler.ops is not None:
            return None
        state = request.rng.get_state()
        uniforms = uniforms_of(request, len(shape.widths))
        draws = PathDraws(tuple(uniforms), recipe.shaping, shape.draw_temperature, self.vocabulary)
        grown = self.grown_paths([request], [ProbablePaths.drawn(draws)])
        if grown is None or grown[0].root.drawn_KW is None:
            request.rng.set_state(state)
        return grown

    def _with_room(self, request: Request, budget: Budget) -> Budget:
        """Of a tree that is told of before it is read. The pass is over as many rows as the tree may have: under prices
        not many more than the tree before had, of which most would be left out.
        """
        last = self._sizes.get(request.slot)
        if last is None:
            return budget
        return replace(budget, node_costs=budget.node_costs[: max(LEAST_ROOM, 1 << last.bit_length())])

    def _closing(self, request: Request, budget: Budget) -> TreeClosing | None:
        """How the tree is closed, where that is wanted before it is read."""
        most = None if self.trees_told is None else self.growth.most_offered(request)
        return None if most is None else TreeClosing(most, self._with_room(request, budget).node_costs, self._tell)

    def _tell(self, closed: ClosedTrees) -> None:
        if self.trees_told is not None:
            self._told = True
            self.trees_told(closed)

    def _follow(self, draft: GrowingDraft, grown: GrownPaths) -> bool:
        """Let a tree grow with the levels that were fed for it, as long as it asks for just these; whether it asks for
        more. Where the target has begun with it, the tree ends with these.
        """
        nodes, asks = 0, draft.advance(None)
        for level in grown.levels:
            if not asks or not draft.asks_for(level):
                break
            nodes += len(level.token_K)
            asks = draft.advance(level.logits.within(self.vocabulary))
        else:
            if asks and self._told:
                asks = draft.end()
        self.keep_grown(draft.request, draft.tree, nodes)
        return asks

    def _known_levels(
        self,
        requests: Sequence[Request],
        budgets: Sequence[Budget],
        depths: Sequence[int],
        roots: Mapping[int, DraftLogits],
    ) -> dict[int, tuple[list[DraftedLevel], list[DraftLogits]]]:
        """By the number of a request the levels of its tree, and as a growth is given them, where these are of a known
        shape. Requests of one shape share a launch.
        """
        alike: dict[TreeShape, list[int]] = {}
        for i in roots if self.drafts_at_once else ():
            if (shape := self._known_shape(requests[i], budgets[i], depths[i])) is not None:
                alike.setdefault(shape, []).append(i)
        known: dict[int, tuple[list[DraftedLevel], list[DraftLogits]]] = {}
        for shape, index in alike.items():
            together = [requests[i] for i in index]
            drawing = together if shape.drawn else []
            states = [request.rng.get_state() for request in drawing]
            draws = [draws_of(request, sum(shape.nodes)) for request in drawing]
            keeps_all = all(self._keeps_all(requests[i], budgets[i], shape) for i in index)
            tell = self._tell if keeps_all and len(index) == len(requests) else None
            drafted = self.levels_at_once(together, shape, [roots[i] for i in index], draws, tell)
            if drafted is not None:
                for i, levels in zip(index, drafted, strict=True):
                    if (logits := of_request(requests[i].id, self._known_logits, levels)) is not None:
                        known[i] = levels, logits
                    if shape.drawn:
                        self._tries[requests[i].slot].note(ran_out=logits is None)
            # the others draw the same again, level by level
            for i, state in zip(index, states, strict=False):
                if i not in known:
                    requests[i].rng.set_state(state)
        return known

    def _known_shape(self, request: Request, budget: Budget, depth: int) -> TreeShape | None:
        """The shape of a tree whose levels need nothing of the host between them: it is fixed, logits are not changed,
        and no level ends for its price, as drawn ones never do.
        """
        if not self.drafts_at_once or request.changes_logits:
            return None
        shape = self.growth.fixed_shape(depth, budget.nodes, request)
        if shape is None or not (self._draws_at_once(shape, request) if shape.drawn else not budget.level_cost):
            return None
        return shape

    def _keeps_all(self, request: Request, budget: Budget, shape: TreeShape) -> bool:
        """Whether a tree is wanted before it is read, and has all nodes of its shape."""
        if self.trees_told is None:
            return False
        return shape.drawn or self.growth.most_offered(request) == 0 and not budget.node_costs

    def _draws_at_once(self, shape: TreeShape, request: Request) -> bool:
        return draws_at_once(shape, request) and self._tries.setdefault(request.slot, Tries()).pay

    def _known_logits(self, levels: Sequence[DraftedLevel]) -> list[DraftLogits] | None:
        """None for a tree that has not all the nodes of its shape; what is below those is not looked at."""
        known = list[DraftLogits]()
        for level in levels:
            if (logits := known_logits(level, self.vocabulary)) is None:
                return None
            known.append(logits)
        return known

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._drafts.pop(request.slot, None)
            self._levels.pop(request.slot, None)
            self._tries.pop(request.slot, None)
            self._sizes.pop(request.slot, None)
            if self.session.context_vocabulary is not None:
                self.session.context_vocabulary.forget(request.slot)
