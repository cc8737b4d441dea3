"""Lookahead decoding (Fu et al. 2024): the target's own Jacobi trajectories give the n-grams that are guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Budget, Drafter, Hidden, Request, TopTokens, option
from spec_sdk.model.models import Models
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.lookahead_window import LookaheadWindow
from spec_sdk_drafters.ngram_pool import NgramPool


@dataclass
class LookaheadConfig:
    """Options of ``drafter=lookahead``."""

    window: int = option(5, "positions that are looked ahead (the paper's W)", minimum=1)
    ngram: int = option(4, "tokens of an n-gram (the paper's N): a window of N - 1 rows, guesses of N - 1", minimum=2)
    guesses: int = option(
        5, "n-grams that begin with one token: most that are kept and verified (the paper's G)", minimum=1
    )
    pool_from_text: bool = option(
        True, "n-grams of prompt and answer are guessed too; false: those of the window alone"
    )
    keep_across_prompts: bool = option(False, "n-grams of one answer are guessed in the next ones of the same engine")


@dataclass
class _Lookahead:
    """What is known of one request: how many tokens of its text the pool has, if it has any."""

    window: LookaheadWindow
    pool: NgramPool
    pooled: int = 0


class LookaheadDrafter(Drafter):
    """Drafts the window's trajectories, to extend them, and the pool's n-grams that begin with the last token.

    One tree holds both branches of the paper. The target's most probable token after a trajectory is its next one, and
    what a trajectory has come to goes to the pool. All tokens are chosen, so any verifier stays lossless; one of the
    window that happens to be right is accepted like any other. A row of the window is a pass: the tree is as large when
    no guess is known, so it belongs with a policy that always grants the same.
    """

    name = "lookahead"
    Config = LookaheadConfig
    config: LookaheadConfig
    branches = True
    target_top_k = 1

    def __init__(self, config: LookaheadConfig, models: Models) -> None:
        super().__init__(config, models)
        self._kept = self._new_pool() if config.keep_across_prompts else None
        self._states: dict[int, _Lookahead] = {}

    def start(self, requests: Sequence[Request], prompt_hidden: Sequence[Hidden] | None = None) -> None:
        for request in requests:
            window = LookaheadWindow(self.config.window, self.config.ngram - 1, request.tokens)
            state = _Lookahead(window, self._kept or self._new_pool())
            self._states[request.slot] = state
            self._pool_text(state, request.tokens)

    def propose_one(self, request: Request, budget: Budget) -> TokenTree:
        state, tree = self._states[request.slot], TreeBuilder(request.pending_token, budget.nodes)
        state.window.add_to(tree, state.window.columns_within(self._share(budget), budget.depth), self.name)
        for guess in state.pool.after(request.pending_token):
            tree.add_path(guess[: budget.depth], self.name)
        return tree.build().tree

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        for request, tree, top in zip(requests, trees, tops, strict=True):
            state = self._states[request.slot]
            for ngram in state.window.advance(tree, top):
                state.pool.add(ngram)

    def observe(
        self,
        requests: Sequence[Request],
        committed: Sequence[Sequence[int]],
        path_hidden: Sequence[Hidden] | None = None,
    ) -> None:
        for request in requests:
            self._pool_text(self._states[request.slot], request.tokens)

    def finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._states.pop(request.slot, None)

    def _share(self, budget: Budget) -> int:
        """The window's nodes: what guesses leave of the budget, and half where that is less.

        It hangs on no guess, so that a window keeps its size where budgets do.
        """
        nodes = budget.nodes - 1
        return max(nodes - self.config.guesses * (self.config.ngram - 1), nodes // 2)

    def _pool_text(self, state: _Lookahead, tokens: Sequence[int]) -> None:
        """Take in the n-grams that end after the tokens that were pooled before."""
        if self.config.pool_from_text:
            state.pool.add_text(tokens[max(0, state.pooled - self.config.ngram + 1) :])
            state.pooled = len(tokens)

    def _new_pool(self) -> NgramPool:
        return NgramPool(self.config.ngram, self.config.guesses)
