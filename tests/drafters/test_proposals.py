"""What the first-party drafters propose, and which options they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, NoOptions, PassInputs, PassOutput, RequestState, SamplingParams
from spec_sdk.errors import UserError
from spec_sdk.model.session import Session
from spec_sdk.registry import Registry
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.prompt_lookup import PromptLookup, PromptLookupConfig
from tests.support.draft_logits import roots_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_models import TinyModels


def request(tokens: list[int], temperature: float = 0.0) -> RequestState:
    return request_for(tokens, reference_sampler(SamplingParams(temperature=temperature)), 0)


def drafter_of(name: str = "draft_model", **options: Any) -> Any:
    """A drafter as YAML describes it, the options of its growth and runner beside its own."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": name, **options})
    return plugin(config, TinyModels())


def plain_logits(session: Session, tokens: Sequence[int]) -> torch.Tensor:
    """The logits [V] after ``tokens``, with nothing taken from what was fed before."""
    session.open(0, tokens, keep=False)
    return roots_of(session.feed([0], [tokens]))[0]


def test_prompt_lookup() -> None:
    check_drafter(lambda: PromptLookup(PromptLookupConfig(), TinyModels()), VOCABULARY, draws=50)


def test_no_draft() -> None:
    check_drafter(lambda: NoDraft(NoOptions(), TinyModels()), VOCABULARY, draws=10)


def test_prompt_lookup_copies_what_followed_the_longest_and_latest_match() -> None:
    drafter = PromptLookup(PromptLookupConfig(max_ngram=2), TinyModels())
    text = [1, 2, 3, 9, 2, 4, 1, 2, 5, 6, 1, 2]
    asked = request(text)
    drafter.start([asked.view])
    assert drafter.propose([asked.view], [Budget(3)])[0].token_N == (2, 5, 6, 1)
    asked.tokens.append(4)  # 2, 4 occurred once, 4 alone too: followed by 1
    assert drafter.propose([asked.view], [Budget(2)])[0].token_N == (4, 1, 2)
    asked.tokens.append(77)
    assert drafter.propose([asked.view], [Budget(2)])[0].token_N == (77,)


def test_a_width_of_one_is_the_draft_models_greedy_chain() -> None:
    asked, drafter = request([5, 6, 7]), drafter_of()
    drafter.start([asked.view])
    chain = drafter.propose([asked.view], [Budget(4)])[0].token_N
    session, tokens = drafter.models.session(drafter.models.draft()), [5, 6, 7]
    for _ in range(4):
        tokens.append(int(plain_logits(session, tokens).argmax()))
    assert chain == tuple(tokens[2:])


def test_a_tree_keeps_the_most_probable_paths() -> None:
    """Against the joint probabilities of all two-token continuations."""
    width = 4
    asked, drafter = request([5, 6, 7]), drafter_of(width=width)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(2)])
    session = drafter.models.session(drafter.models.draft())
    first_V = plain_logits(session, asked.tokens).log_softmax(-1)
    paths = []
    for token in first_V.topk(width).indices.tolist():
        second_V = plain_logits(session, [*asked.tokens, token]).log_softmax(-1)
        paths += [(float(first_V[token] + second_V[t]), (token, t)) for t in range(VOCABULARY)]
    expected = {path for _, path in sorted(paths, reverse=True)[:width]}
    drafted = {(tree.token_N[tree.parent_N[i]], tree.token_N[i]) for i in range(tree.size) if tree.depth_N[i] == 2}
    assert drafted == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("draft_model", {"width": 0}, "drafter.width: 0"),
        ("draft_model", {"width": 4096}, "drafter.width: 4096 must be between 1"),
        ("draft_model", {"children": "topk"}, "did you mean 'top_k'"),
        ("draft_model", {"growth": "statik"}, "drafter.growth: .*did you mean 'static'"),
        ("draft_model", {"growth": "static", "widths": []}, "drafter.widths"),
        ("draft_model", {"growth": "beam", "width": 2, "children": "with_replacement"}, "static"),
        ("draft_model", {"temperature": 0}, "drafter.temperature: 0.0 must be between 0.01"),
        ("layer_skip", {"temperature": float("nan")}, "drafter.temperature: nan must be between"),
        ("draft_model", {"temperature": 0.5, "children": "top_k"}, "drafter.temperature: 0.5 .* children=top_k"),
        ("easyspec", {"temperature": 2, "growth": "dynamic", "width": 2}, "drafter.temperature: 2 .* growth=dynamic"),
        ("draft_model", {"temperature": 2, "growth": "beam", "width": 2}, "drafter.temperature: 2 .* growth=beam"),
        ("easyspec", {"size": 0}, "drafter.size: 0"),
        ("easyspec", {"groups": [[0], [2]]}, "drafter.groups: layer 2"),
        ("prompt_lookup", {"max_ngram": 2, "min_ngram": 3}, "drafter.min_ngram: 3"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drafter_of(name, **options)


def test_a_dynamic_tree_keeps_the_most_probable_paths_of_all_lengths() -> None:
    """Against the joint probabilities of everything that the best nodes of every level offer."""
    width, depth, kept = 3, 3, 6
    asked, drafter = request([5, 6, 7]), drafter_of(growth="dynamic", width=width, max_nodes=kept)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(depth)])
    session = drafter.models.session(drafter.models.draft())
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    offered: dict[tuple[int, ...], float] = {}
    for _ in range(depth):
        level: dict[tuple[int, ...], float] = {}
        for path, joint in frontier.items():
            logprob_V = plain_logits(session, [*asked.tokens, *path]).log_softmax(-1)
            level |= {(*path, t): joint + float(logprob_V[t]) for t in logprob_V.topk(width).indices.tolist()}
        offered |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:width])
    expected = {path for path, _ in sorted(offered.items(), key=lambda item: -item[1])[:kept]}
    assert {tuple(tree.token_N[n] for n in tree.path_to(i)[1:]) for i in range(1, tree.size)} == expected


@pytest.mark.parametrize("children", ["top_k", "without_replacement"])
def test_a_static_tree_has_its_widths(children: str) -> None:
    drafter = drafter_of(growth="static", widths=[3, 2, 1], children=children)
    asked = request([5, 6, 7], temperature=1.0)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(4)])
    assert [tree.depth_N.count(d) for d in range(5)] == [1, 3, 6, 6, 6]


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("children", ["with_replacement", "without_replacement"])
def test_a_drawn_child_comes_from_the_draft_models_distribution_after_its_own_path(
    children: str, temperature: float
) -> None:
    drafter = drafter_of(growth="static", widths=[3, 2, 1], children=children, temperature=temperature)
    asked = request([5, 6, 7], temperature=1.0)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(3)])
    session = drafter.models.session(drafter.models.draft())
    for node, draws in enumerate(tree.draws_N):
        logits_V = plain_logits(session, [*asked.tokens, *(tree.token_N[i] for i in tree.path_to(node)[1:])])
        expected_V = asked.sampler.probabilities(logits_V[None] / temperature)[0]
        for draw in draws:
            assert draw.q_V is not None
            torch.testing.assert_close(draw.q_V, expected_V, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("growth", ["auto", "beam", "dynamic", "static"])
def test_the_drafts_temperature_changes_drawn_trees_and_no_chosen_ones(growth: str) -> None:
    shape: dict[str, Any] = {"widths": [1]} if growth == "static" else {}

    def tree_of(sampling: float, temperature: float) -> tuple[int, ...]:
        asked, drafter = request([5, 6, 7], sampling), drafter_of(growth=growth, temperature=temperature, **shape)
        drafter.start([asked.view])
        return tuple(drafter.propose([asked.view], [Budget(6)])[0].token_N)

    assert tree_of(0.0, 8.0) == tree_of(0.0, 1.0)
    assert tree_of(1.0, 8.0) != tree_of(1.0, 1.0)


@pytest.mark.parametrize("name", ["draft_model", "easyspec", "eagle", "layer_skip"])
def test_every_drafter_that_draws_from_a_model_has_a_temperature(name: str) -> None:
    _, config = Registry.discover().configure("drafter", {"name": name, "temperature": 0.7})
    assert config.growth.config.temperature == 0.7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_auto_draws_children_only_where_tokens_are_drawn(temperature: float) -> None:
    """Greedy: the beam of the most probable paths. Sampling: distinct draws at the root, a path from each."""
    drafter = drafter_of(width=3)
    asked = request([5, 6, 7], temperature=temperature)
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [Budget(4)])
    kinds = {draw.kind for draws in tree.draws_N for draw in draws}
    assert kinds == ({"without_replacement"} if temperature else {"chosen"})
    assert [tree.depth_N.count(d) for d in range(5)] == [1, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("options", "budget", "levels"),
    [
        ({"growth": "static", "widths": [10]}, Budget(5), [1, 10, 100, 1000, 1000, 1000]),
        ({"growth": "static", "widths": [3, 2, 1]}, Budget(3, 16), [1, 3, 6, 6]),
        ({"growth": "static", "widths": [3, 2, 1]}, Budget(3, 15), [1, 3, 3, 3]),
        ({"growth": "static", "widths": [3, 2, 1]}, Budget(3, 9), [1, 2, 2, 2]),
        ({"growth": "static", "widths": [3, 2, 1]}, Budget(4, 5), [1, 1, 1, 1, 1]),
        ({"growth": "beam", "width": 4}, Budget(3, 13), [1, 4, 4, 4]),
        ({"growth": "beam", "width": 4}, Budget(3, 9), [1, 2, 3, 3]),
        ({"growth": "beam", "width": 4}, Budget(3, 4), [1, 1, 1, 1]),
    ],
)
def test_a_tree_becomes_narrower_not_shallower_where_nodes_are_few(
    options: dict[str, Any], budget: Budget, levels: list[int]
) -> None:
    drafter, asked = drafter_of(**options), request([5, 6, 7])
    drafter.start([asked.view])
    (tree,) = drafter.propose([asked.view], [budget])
    assert [tree.depth_N.count(d) for d in range(tree.depth + 1)] == levels


@pytest.mark.parametrize("nodes", [2, 4, 9])
@pytest.mark.parametrize(
    "options",
    [
        {"width": 3},
        {"growth": "dynamic", "width": 3, "max_nodes": 20},
        {"growth": "static", "widths": [3, 2]},
        {"growth": "static", "widths": [5, 2], "children": "with_replacement"},
        {"growth": "static", "widths": [5, 2], "children": "without_replacement"},
    ],
    ids=lambda options: f"{options.get('growth', 'auto')} {options.get('children', 'auto')}",
)
def test_a_tree_has_no_more_nodes_than_its_budget(options: dict[str, Any], nodes: int) -> None:
    sizes = []
    for budget in (Budget(4), Budget(min(4, nodes - 1), nodes)):
        drafter, asked = drafter_of(**options), request([5, 6, 7], temperature=1.0)
        drafter.start([asked.view])
        sizes.append(drafter.propose([asked.view], [budget])[0].size)
    assert sizes[0] > 9 and 2 <= sizes[1] <= nodes


@pytest.mark.parametrize("name", ["draft_model", "easyspec"])
def test_a_slot_that_is_used_again_drafts_as_a_fresh_one(name: str) -> None:
    """Also where a prompt begins as the one before, of which the draft model's cache keeps what they share."""
    used = drafter_of(name, width=3)
    for prompt in ([5, 6, 7, 8, 9], [5, 6, 7, 30, 31, 32], [5, 6], [9, 8, 7], [9, 8, 7, 3]):
        again, fresh = request(prompt, temperature=1.0), drafter_of(name, width=3)
        asked = request(prompt, temperature=1.0)
        used.start([asked.view])
        fresh.start([again.view])
        for _ in range(2):
            (tree,), (expected,) = (
                drafter.propose([state.view], [Budget(3)]) for drafter, state in ((used, asked), (fresh, again))
            )
            assert tree.token_N == expected.token_N
            for state in (asked, again):
                state.tokens.extend([*tree.token_N[1:2], 11])
        used.finish([asked.view])


def test_requests_of_one_step_share_the_draft_models_passes() -> None:
    """Three prompts of other lengths: as many passes as for one, and to each the tree that it gets alone."""
    prompts = [[5, 6, 7], [9] * 17, [8, 3]]
    alone, drafter = [], drafter_of(width=3)
    passes: list[int] = []
    forward = drafter.session.executor.forward

    def counted(inputs: PassInputs, *rest: Any) -> PassOutput:
        passes.append(inputs.batch)
        output: PassOutput = forward(inputs, *rest)
        return output

    drafter.session.executor.forward = counted
    for prompt in prompts:
        asked = request(prompt, temperature=1.0)
        drafter.start([asked.view])
        passes.clear()
        alone.append(drafter.propose([asked.view], [Budget(4)])[0].token_N)
        drafter.finish([asked.view])
    assert passes == [1] * 4
    together = [request(prompt, temperature=1.0) for prompt in prompts]
    for slot, asked in enumerate(together):
        asked.slot = slot
    views = [asked.view for asked in together]
    drafter.start(views)
    passes.clear()
    trees = drafter.propose(views, [Budget(4)] * 3)
    assert passes == [3] * 4
    assert [tree.token_N for tree in trees] == alone


@pytest.mark.parametrize(
    "options",
    [
        {"name": "draft_model"},
        {"name": "draft_model", "width": 3},
        {"name": "draft_model", "growth": "static", "widths": [3, 2], "children": "with_replacement"},
        {"name": "draft_model", "growth": "dynamic", "width": 3},
        {"name": "easyspec", "width": 3, "size": 2},
        {"name": "merged", "members": [{"name": "prompt_lookup"}, {"name": "draft_model", "width": 2}]},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values() if isinstance(value, str)),
)
def test_requests_of_one_step_get_the_trees_that_each_gets_alone(options: dict[str, Any]) -> None:
    """Each with a budget of its own, over rounds in which more is accepted of one than of the other."""
    prompts, budgets = [[5, 6, 7, 5, 6], [9] * 17, [8, 3]], [Budget(4), Budget(2), Budget(3, 5)]

    def rounds(numbers: Sequence[int]) -> list[list[tuple[int, ...]]]:
        drafter = drafter_of(**options)
        asked = [request(prompts[number], temperature=1.0) for number in numbers]
        for slot, state in enumerate(asked):
            state.slot = slot
        views, drafted = [state.view for state in asked], []
        drafter.start(views)
        for turn in range(4):
            trees = drafter.propose(views, [budgets[number] for number in numbers])
            drafted.append([tree.token_N for tree in trees])
            committed = []
            for number, state, tree in zip(numbers, asked, trees, strict=True):
                path = tree.path_to((number + 1) * (turn + 2) % tree.size)[1:]
                committed.append([*(tree.token_N[node] for node in path), 11 + turn])
                state.tokens.extend(committed[-1])
            drafter.observe(views, committed)
        return drafted

    alone = [[turn[0] for turn in rounds([number])] for number in range(3)]
    assert rounds(range(3)) == [list(turn) for turn in zip(*alone, strict=True)]
    assert len({len(tokens) for turn in alone for tokens in turn}) > 1
