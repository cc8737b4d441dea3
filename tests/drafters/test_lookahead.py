"""Lookahead decoding: the comb of the window, what its trajectories come to, the pool of n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, Request, RequestState, SamplingParams, TopTokens
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.model.session import EpilogueOf, Scores
from spec_sdk.policy import FixedConfig, FixedPolicy
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_tree
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_drafters.lookahead import LookaheadConfig, LookaheadDrafter
from spec_sdk_drafters.lookahead_window import LookaheadWindow
from spec_sdk_drafters.ngram_pool import NgramPool
from spec_sdk_verifiers.multi_step import MultiStep
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
VOCABULARY = 40
WIDE = Budget(64)


def drafter_of(**options: Any) -> LookaheadDrafter:
    return LookaheadDrafter(LookaheadConfig(**options), MODELS)


def request(tokens: Sequence[int], slot: int = 0) -> RequestState:
    return request_for(tokens, reference_sampler(SamplingParams()), 0, slot=slot)


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The token paths to all nodes but the root, in pre-order."""
    return [tuple(tree.token_N[n] for n in tree.path_to(node)[1:]) for node in range(1, tree.size)]


def tops_of(tree: TokenTree, best: Sequence[int]) -> TopTokens:
    assert len(best) == tree.size
    return TopTokens(torch.tensor(best).view(-1, 1), torch.ones(tree.size, 1))


def window_of(*rows: list[int], width: int, levels: int) -> LookaheadWindow:
    window = LookaheadWindow(width, levels, [0])
    window.rows = list(rows)
    return window


def comb(window: LookaheadWindow, root: int, columns: int = 99) -> TokenTree:
    tree = TreeBuilder(root)
    window.add_to(tree, min(columns, len(window.rows[0])), "lookahead")
    return tree.build().tree


def test_the_comb_is_the_mask_of_the_authors_figure() -> None:
    """W = 5, N = 4. A token sees row 0 up to its column, and its own trajectory; its depth is its place."""
    orange, green, red = [0, 11, 12, 13, 14], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34]
    tree = comb(window_of(orange, green, red, width=5, levels=3), root=7)
    seen = {path[-1]: path for path in paths(tree)}
    for column in range(5):
        spine = tuple(orange[1 : column + 1])
        if column:
            assert seen[orange[column]] == spine
        assert seen[green[column]] == (*spine, green[column])
        assert seen[red[column]] == (*spine, green[column], red[column])
    depth = dict(zip(tree.token_N, tree.depth_N, strict=True))
    assert [depth[token] for token in orange[1:]] == [1, 2, 3, 4]
    assert [depth[token] for token in green] == [1, 2, 3, 4, 5]
    assert [depth[token] for token in red] == [2, 3, 4, 5, 6]
    # (N - 1) W rows of the pass, the root among them
    assert tree.size == 3 * 5


def test_a_full_window_moves_on_by_a_row_and_gives_an_ngram_for_every_column() -> None:
    window = window_of([0, 11, 12], [20, 21, 22], [30, 31, 32], width=3, levels=3)
    tree = comb(window, root=7)
    following = {20: 0, 30: 40, 31: 41, 32: 42}
    ngrams = window.advance(tree, tops_of(tree, [following.get(token, 99) for token in tree.token_N]))
    assert ngrams == [[7, 20, 30, 40], [11, 21, 31, 41], [12, 22, 32, 42]]
    assert window.rows[0][1:] == [21, 22] and window.rows[1:] == [[30, 31, 32], [40, 41, 42]]


def test_a_window_of_bigrams_has_one_row() -> None:
    window = window_of([0, 11, 12], width=3, levels=1)
    tree = comb(window, root=7)
    assert tree.token_N == (7, 11, 12)
    assert window.advance(tree, tops_of(tree, [40, 41, 42])) == [[7, 40], [11, 41], [12, 42]]
    assert window.rows[0][1:] == [41, 42]


def test_while_the_window_fills_every_row_takes_a_column() -> None:
    window = LookaheadWindow(3, 3, [5, 6, 7, 8])
    assert [len(row) for row in window.rows] == [5] and set(window.rows[0]) <= {5, 6, 7, 8}
    window.rows = [[0, 11, 12, 13, 14]]
    tree = comb(window, root=7)
    assert window.advance(tree, tops_of(tree, [50, 51, 52, 53, 54])) == []
    # the next token takes the place of 11, and 51 follows it
    assert [row[1:] for row in window.rows] == [[12, 13, 14], [52, 53, 54]] and window.rows[1][0] == 51
    tree = comb(window, root=8)
    last = {51: 60, 52: 61, 53: 62, 54: 63}
    assert window.advance(tree, tops_of(tree, [last.get(token, 99) for token in tree.token_N])) == []
    assert [row[1:] for row in window.rows] == [[13, 14], [53, 54], [62, 63]]
    assert [row[0] for row in window.rows[1:]] == [52, 61]


def test_trajectories_that_meet_share_a_node_and_lose_nothing() -> None:
    """Column 1 goes on like row 0, and column 0 begins like it: the nodes are one, the trajectories are three."""
    window = window_of([0, 11, 12], [11, 12, 22], [12, 31, 32], width=3, levels=3)
    tree = comb(window, root=7)
    assert tree.size < 9 and len(set(paths(tree))) == tree.size - 1
    assert tree.first_draw_N1[-1] == tree.size - 1
    after = {(11, 12): 40, (11, 12, 31): 41, (11, 12, 22, 32): 42}
    best = [99, *(after.get(path, 98) for path in paths(tree))]
    assert window.advance(tree, tops_of(tree, best)) == [[7, 11, 12, 40], [11, 12, 31, 41], [12, 22, 32, 42]]


def test_columns_that_there_was_no_room_for_begin_anew() -> None:
    window = window_of([0, 11, 12], [20, 21, 22], width=3, levels=2)
    tree = comb(window, root=7, columns=2)
    ngrams = window.advance(tree, tops_of(tree, [40 + n for n in range(tree.size)]))
    assert [ngram[:2] for ngram in ngrams] == [[7, 20], [11, 21]]
    assert [len(row) for row in window.rows] == [3, 3]
    rows = [row[:] for row in window.rows]
    assert window.advance(TokenTree.root_only(7), tops_of(TokenTree.root_only(7), [9])) == []
    assert window.rows == rows


@pytest.mark.parametrize(("nodes", "depth", "columns"), [(8, 64, 3), (7, 64, 2), (64, 4, 3), (64, 3, 2), (64, 1, 0)])
def test_as_many_columns_as_there_is_room_for(nodes: int, depth: int, columns: int) -> None:
    window = window_of([0, 11, 12], [20, 21, 22], [30, 31, 32], width=3, levels=3)
    assert window.columns_within(nodes, depth) == columns
    tree = comb(window, 7, columns)
    assert tree.size - 1 <= nodes and tree.depth <= depth


# the pool


def test_the_pool_keeps_the_latest_of_each_token() -> None:
    pool = NgramPool(3, 2)
    for ngram in ([1, 2, 3], [1, 4, 5], [9, 9, 9], [1, 2, 3]):
        pool.add(ngram)
    assert list(pool.after(1)) == [(2, 3), (4, 5)] and list(pool.after(9)) == [(9, 9)] and not list(pool.after(2))
    pool.add([1, 6, 7])
    assert list(pool.after(1)) == [(6, 7), (2, 3)]


def test_a_text_is_pooled_by_all_its_ngrams() -> None:
    pool = NgramPool(3, 9)
    pool.add_text([1, 2, 3, 1, 2, 4])
    assert list(pool.after(1)) == [(2, 4), (2, 3)] and list(pool.after(2)) == [(3, 1)] and not list(pool.after(4))


# the drafter


def test_guesses_stand_in_the_tree_beside_the_window() -> None:
    drafter, asked = drafter_of(window=2, ngram=3, guesses=2), request([1, 2, 3, 9, 1, 4, 5, 9, 1])
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [WIDE])
    check_tree(tree)
    assert {(4,), (4, 5), (2,), (2, 3)} <= set(paths(tree))
    assert all(draw.kind == "chosen" for draws in tree.draws_N for draw in draws)


def test_where_nodes_are_few_the_latest_guess_has_those_of_the_window_left() -> None:
    drafter, asked = drafter_of(window=4, ngram=3, guesses=3), request([1, 2, 3, 9, 1, 4, 5, 9, 1])
    drafter.start([asked.view])
    drafter._states[0].window.rows = [[0, 31, 32, 33, 34]]
    (tree,) = drafter.propose([asked.view], [Budget(5, 6)])
    # five nodes besides the root: two of the window, the other three for guesses
    assert set(paths(tree)) == {(31,), (31, 32), (4,), (4, 5), (2,)}


@pytest.mark.parametrize("pooled", [True, False])
def test_ngrams_of_the_text_are_guessed_where_asked_for(pooled: bool) -> None:
    drafter, asked = drafter_of(window=1, ngram=3, pool_from_text=pooled), request([1, 2, 3, 9])
    drafter.start([asked.view])
    for token in (5, 6, 1):
        asked.tokens.append(token)
        drafter.observe([asked.view], [[token]])
    assert list(drafter._states[0].pool.after(1)) == ([(2, 3)] if pooled else [])
    # from the prompt into the answer, and in the answer
    assert list(drafter._states[0].pool.after(9)) == ([(5, 6)] if pooled else [])
    assert list(drafter._states[0].pool.after(5)) == ([(6, 1)] if pooled else [])


@pytest.mark.parametrize("keep", [True, False])
def test_the_pool_is_kept_from_prompt_to_prompt_where_asked_for(keep: bool) -> None:
    drafter = drafter_of(window=1, ngram=3, keep_across_prompts=keep)
    for text in ([1, 2, 3], [7, 8, 1]):
        asked = request(text)
        drafter.start([asked.view])
        (tree,) = drafter.propose([asked.view], [WIDE])
        drafter.finish([asked.view])
    assert ((2, 3) in paths(tree)) is keep and not drafter._states


class Watched(LookaheadDrafter):
    """Checks every new row against the target's own choice after the text, row 0 and the trajectory, spelt out."""

    target: TableModel
    rows_checked = 0

    def observe_scores(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], tops: Sequence[TopTokens]
    ) -> None:
        before = [[row[:] for row in self._states[request.slot].window.rows] for request in requests]
        super().observe_scores(requests, trees, tops)
        for request, tree, rows in zip(requests, trees, before, strict=True):
            after = self._states[request.slot].window.rows
            if tree.size == 1:
                continue
            # the scheduler has appended what the step gave
            begin = max(
                n
                for n in range(len(request.tokens))
                if request.tokens[n] == tree.token_N[0] and n < len(request.tokens) - 1
            )
            text = request.tokens[: begin + 1]
            full = len(rows) == self.config.ngram - 1
            for column in range(len(rows[0])):
                if not full and column == 0:
                    continue
                trajectory = [*rows[0][1 : column + 1], *(row[column] for row in rows[1:])]
                best = int(self.target.logits([*text, *trajectory]).argmax())
                assert after[-1][column if full else column - 1] == best
                type(self).rows_checked += 1


@pytest.mark.parametrize("ngram", [2, 3, 5])
def test_every_row_is_what_the_target_finds_after_the_text_and_its_own_trajectory(ngram: int) -> None:
    target = TableModel(200, 3)
    drafter = Watched(LookaheadConfig(window=4, ngram=ngram, guesses=2), MODELS)
    drafter.target = target
    scheduler = Scheduler(target, drafter, MultiStep(None), FixedPolicy(FixedConfig(depth=30)), slots=1)
    state = request_for(list(range(100, 110)), reference_sampler(SamplingParams()), 0, max_new_tokens=40)
    scheduler.add(state, lambda event: None)
    before = Watched.rows_checked
    while scheduler.busy and len(state.tokens) < 35:
        for progress in scheduler.step():
            assert progress.error is None
    assert Watched.rows_checked - before > 60


def test_trajectories_find_what_the_text_has_not_said() -> None:
    """A target that counts: trajectories from 16 on are ahead of an answer from 5 on, though no token comes twice."""

    class Counting(TableModel):
        def score(
            self,
            slots: Sequence[int],
            trees: Sequence[TokenTree],
            taps: Sequence[int] = (),
            epilogue: EpilogueOf | None = None,
        ) -> list[Scores]:
            super().score(slots, trees)
            return [Scores(next_logits([following(token) for token in tree.token_N]), {}) for tree in trees]

    def following(token: int) -> int:
        return (token + 1) % 251

    def next_logits(tokens: list[int]) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(tokens), 251) * 9.0

    def steps(**options: Any) -> int:
        plugin: Any
        plugin, config = Registry.discover().configure("drafter", options)
        drafter = plugin(config, MODELS)
        policy = FixedPolicy(FixedConfig(depth=30))
        scheduler = Scheduler(Counting(251, 0), drafter, MultiStep(None), policy, slots=1)
        state = request_for([16] * 9 + [5], reference_sampler(SamplingParams()), 0, max_new_tokens=60)
        scheduler.add(state, lambda event: None)
        count = 0
        while scheduler.busy:
            scheduler.step()
            count += 1
        assert state.tokens[10:] == [following(token) for token in state.tokens[9:-1]]
        return count

    assert steps(name="prompt_lookup") >= 60
    # four tokens a step from 16 on, until the answer has overtaken the trajectories, which go on by one
    assert steps(name="lookahead", window=5, ngram=4, pool_from_text=False) < 50
