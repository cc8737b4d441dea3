"""Drafting with a smaller model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.contracts import BlockRunner, DraftLogits, Hidden, Request, TreeShape, TreesTold, option
from spec_sdk.model.draft_levels import DraftedLevel
from spec_sdk.model.models import Models
from spec_sdk.model.session import Session
from spec_sdk.ops.grown_paths import GrownPaths, ProbablePaths
from spec_sdk.ranks import ALONE
from spec_sdk.registry import Registry
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.chosen_vocabulary import (
    context_vocabulary_of,
    context_vocabulary_option,
    reduced_to,
    vocabulary_option,
)
from spec_sdk_drafters.draft_window import DraftWindow, window_option
from spec_sdk_drafters.growing_drafter import GROWTHS, GrowingDrafter

RUNNERS = "sequential; layer_parallel, groups of attention layers at once (EasySpec); layer_skip, without some layers"


@dataclass
class DraftModelConfig:
    """Options of drafting with a model; those of the chosen growth and runner stand beside them."""

    draft: str | None = option(None, "the model to draft with", means={None: "model.draft"})
    vocabulary: int | None = vocabulary_option()
    context_vocabulary: Any = context_vocabulary_option()
    window: int | None = window_option()
    growth: Any = option("auto", f"which nodes are expanded: {GROWTHS}")
    runner: Any = option("sequential", f"how the draft model runs while the tree grows: {RUNNERS}")


class DraftModelDrafter(GrowingDrafter):
    """Drafts a chain or tree with a draft model, whose cache keeps the K and V of accepted tokens.

    K and V that the runner computed roughly are not kept: the accepted tokens and the bonus token are then fed in one
    plain pass, the first of the next round, which leaves precise K and V and gives the first, precise distribution
    (bonus calibration: EasySpec, §3.2).
    """

    name = "draft_model"
    Config = DraftModelConfig
    config: DraftModelConfig
    parts = {"growth": "growth", "runner": "runner"}

    def __init__(self, config: DraftModelConfig, models: Models) -> None:
        super().__init__(config, models)
        self.runner: BlockRunner = Registry.discover().part("runner", config.runner)
        ranks = models.draft_ranks(self.runner.spreads)
        # a runner that spreads has each rank hold the whole model and do a part of the work
        model = models.draft(config.draft, ALONE if self.runner.spreads else ranks)
        executor = reduced_to(model.executor, config, at_once=ranks.size == 1)
        model = dataclasses.replace(model, executor=executor)
        self.draft_name = model.name
        self.runner.prepare(model.executor.layers, ranks)
        self.runner.share_kv(model.executor.kv_sources)
        self.every_rank = ranks.size > 1
        self.session: Session = models.session(model, self.runner, spread=self.every_rank)
        self.session.context_vocabulary = context_vocabulary_of(model.executor, config)
        self.draft_session = self.session
        self._window = DraftWindow.of(config.window, self.session.context)
        self.longest_catch_up = self._window.whole
        self._first: dict[int, int] = {}

    @property
    def _holds_plain_kv(self) -> bool:
        """Whether all that the cache holds is what plain passes give, so that another request may begin with it."""
        return not self.runner.keeps_kv or self.runner.guarantee == "exact"

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            self._drafts.pop(request.slot, None)
            self.session.prefill(request.slot, self._begin(request))

    def _begin(self, request: Request) -> Sequence[int]:
        """Open the slot for what is before the pending token, or the last of it: the tokens that are to be fed."""
        text, slot = request.tokens[:-1], request.slot
        first = self._first[slot] = self._window.first(len(text))
        if first and self.session.encoder is not None:
            # what an encoder saw is told from the beginning: nothing is drafted behind the model's context
            self._first[slot] = 0
            return ()
        kept = self.session.open(slot, text[first:], self._holds_plain_kv, request.encoder_input)
        return text[first + kept :]

    def room(self, request: Request) -> int:
        return self._window.room - (len(request.tokens) - self._first[request.slot])

    def root_pass(self, requests: Sequence[Request]) -> Callable[[], list[DraftLogits]]:
        return functools.partial(self.session.feed, *self._unfed(requests))

    @property
    def drafts_at_once(self) -> bool:
        return self.session.one_launch

    def levels_at_once(
        self,
        requests: Sequence[Request],
        shape: TreeShape,
        roots: Sequence[DraftLogits],
        draws: Sequence[Sequence[float]],
        tell: TreesTold | None,
    ) -> list[list[DraftedLevel]] | None:
        slots = [request.slot for request in requests]
        return self.session.draft_levels(slots, shape, roots, self.vocabulary, draws, tell)

    @property
    def grows_paths(self) -> bool:
        return self.session.grows_paths

    def grown_paths(self, requests: Sequence[Request], paths: Sequence[ProbablePaths]) -> list[GrownPaths] | None:
        return self.session.feed_and_grow(*self._unfed(requests), paths)

    def _unfed(self, requests: Sequence[Request]) -> tuple[list[int], list[list[int]]]:
        """Each request's slot, and the tokens that it is to be fed."""
        return [request.slot for request in requests], [request.tokens[self._fed(request) :] for request in requests]

    def _fed(self, request: Request) -> int:
        """How many of a text's tokens the draft model has in its cache, or left out."""
        return self._first[request.slot] + self.session.length(request.slot)

    def keep_grown(self, request: Request, tree: TreeBuilder, nodes: int) -> None:
        self.session.keep_grown(request.slot, tree, nodes)

    def before_growing(self, requests: Sequence[Request]) -> None:
        """Commit the K and V of those drafted tokens that were accepted, as far as the draft model was fed them. Begin
        anew where there is no room for more.
        """
        slots, paths = [], []
        for request in requests:
            draft = self._drafts.pop(request.slot, None)
            if draft is not None and self.runner.keeps_kv:
                slots.append(request.slot)
                paths.append(draft.accepted(request.tokens[self._fed(request) : -1]))
        if slots:
            self.session.commit(slots, paths)
        for request in requests:
            if self.room(request) < 1:
                self.session.prefill(request.slot, self._begin(request))
