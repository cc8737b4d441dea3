"""What the first-party drafters propose, and which options they refuse."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.contracts import Budget, NoOptions, Request, SamplingParams
from spec_sdk.errors import UserError
from spec_sdk.testing import check_drafter
from spec_sdk.testing.defaults import reference_sampler, request_for
from spec_sdk_drafters.draft_model import DraftModelConfig, DraftModelDrafter
from spec_sdk_drafters.easyspec import EasySpecConfig, EasySpecDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.prompt_lookup import PromptLookup, PromptLookupConfig
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_models import TinyModels


def request(tokens: list[int], temperature: float = 0.0) -> Request:
    return request_for(tokens, reference_sampler(SamplingParams(temperature=temperature)), 0)


def test_prompt_lookup() -> None:
    check_drafter(lambda: PromptLookup(PromptLookupConfig(), TinyModels()), VOCABULARY, draws=50)


def test_no_draft() -> None:
    check_drafter(lambda: NoDraft(NoOptions(), TinyModels()), VOCABULARY, draws=10)


def test_prompt_lookup_copies_what_followed_the_longest_and_latest_match() -> None:
    drafter = PromptLookup(PromptLookupConfig(max_ngram=2), TinyModels())
    text = [1, 2, 3, 9, 2, 4, 1, 2, 5, 6, 1, 2]
    asked = request(text)
    drafter.start(asked)
    assert drafter.propose(asked, Budget(3)).token_N == (2, 5, 6, 1)
    asked.tokens.append(4)  # 2, 4 occurred once, 4 alone too: followed by 1
    assert drafter.propose(asked, Budget(2)).token_N == (4, 1, 2)
    asked.tokens.append(77)
    assert drafter.propose(asked, Budget(2)).token_N == (77,)


def test_a_width_of_one_is_the_draft_models_greedy_chain() -> None:
    models = TinyModels()
    asked = request([5, 6, 7])
    drafter = DraftModelDrafter(DraftModelConfig(), models)
    drafter.start(asked)
    chain = drafter.propose(asked, Budget(4)).token_N
    session, tokens = models.session(models.draft()), [5, 6, 7]
    for _ in range(4):
        session.reset()
        tokens.append(int(session.feed(tokens).argmax()))
    assert chain == tuple(tokens[2:])


def test_a_tree_keeps_the_most_probable_paths() -> None:
    """Against the joint probabilities of all two-token continuations."""
    models, width = TinyModels(), 4
    asked = request([5, 6, 7])
    drafter = DraftModelDrafter(DraftModelConfig(width=width), models)
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(2))
    session = models.session(models.draft())
    first_V = session.feed(asked.tokens).log_softmax(-1)
    paths = []
    for token in first_V.topk(width).indices.tolist():
        session.reset()
        second_V = session.feed([*asked.tokens, token]).log_softmax(-1)
        paths += [(float(first_V[token] + second_V[t]), (token, t)) for t in range(VOCABULARY)]
    expected = {path for _, path in sorted(paths, reverse=True)[:width]}
    drafted = {(tree.token_N[tree.parent_N[i]], tree.token_N[i]) for i in range(tree.size) if tree.depth_N[i] == 2}
    assert drafted == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DraftModelDrafter(DraftModelConfig(width=0), TinyModels()), "drafter.width: 0"),
        (
            lambda: DraftModelDrafter(DraftModelConfig(width=4096), TinyModels()),
            "drafter.width: 4096 must be between 1",
        ),
        (lambda: DraftModelDrafter(DraftModelConfig(children="topk"), TinyModels()), "did you mean 'top_k'"),
        (lambda: DraftModelDrafter(DraftModelConfig(growth="static", widths=[]), TinyModels()), "drafter.widths"),
        (
            lambda: DraftModelDrafter(
                DraftModelConfig(growth="beam", width=2, children="with_replacement"), TinyModels()
            ),
            "static",
        ),
        (lambda: EasySpecDrafter(EasySpecConfig(size=0), TinyModels()), "drafter.size: 0"),
        (lambda: EasySpecDrafter(EasySpecConfig(groups=[[0], [2]]), TinyModels()), "drafter.groups: layer 2"),
        (lambda: PromptLookup(PromptLookupConfig(max_ngram=2, min_ngram=3), TinyModels()), "drafter.min_ngram: 3"),
    ],
)
def test_bad_options_are_named(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        make()


def test_a_dynamic_tree_keeps_the_most_probable_paths_of_all_lengths() -> None:
    """Against the joint probabilities of everything that the best nodes of every level offer."""
    models, width, depth, kept = TinyModels(), 3, 3, 6
    asked = request([5, 6, 7])
    drafter = DraftModelDrafter(DraftModelConfig(growth="dynamic", width=width, max_nodes=kept), models)
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(depth))
    session = models.session(models.draft())
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    offered: dict[tuple[int, ...], float] = {}
    for _ in range(depth):
        level: dict[tuple[int, ...], float] = {}
        for path, joint in frontier.items():
            session.reset()
            logprob_V = session.feed([*asked.tokens, *path]).log_softmax(-1)
            level |= {(*path, t): joint + float(logprob_V[t]) for t in logprob_V.topk(width).indices.tolist()}
        offered |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:width])
    expected = {path for path, _ in sorted(offered.items(), key=lambda item: -item[1])[:kept]}
    assert {tuple(tree.token_N[n] for n in tree.path_to(i)[1:]) for i in range(1, tree.size)} == expected


@pytest.mark.parametrize("children", ["top_k", "without_replacement"])
def test_a_static_tree_has_its_widths(children: str) -> None:
    config = DraftModelConfig(growth="static", widths=[3, 2, 1], children=children)
    drafter = DraftModelDrafter(config, TinyModels())
    asked = request([5, 6, 7], temperature=1.0)
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(4))
    assert [tree.depth_N.count(d) for d in range(5)] == [1, 3, 6, 6, 6]


@pytest.mark.parametrize("children", ["with_replacement", "without_replacement"])
def test_a_drawn_child_comes_from_the_draft_models_distribution_after_its_own_path(children: str) -> None:
    models, asked = TinyModels(), request([5, 6, 7], temperature=1.0)
    drafter = DraftModelDrafter(DraftModelConfig(growth="static", widths=[3, 2, 1], children=children), models)
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(3))
    session = models.session(models.draft())
    for node, draws in enumerate(tree.draws_N):
        session.reset()
        logits_V = session.feed([*asked.tokens, *(tree.token_N[i] for i in tree.path_to(node)[1:])])
        expected_V = asked.sampler.probabilities(logits_V[None])[0]
        for draw in draws:
            assert draw.q_V is not None
            torch.testing.assert_close(draw.q_V, expected_V, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_auto_draws_children_only_where_tokens_are_drawn(temperature: float) -> None:
    """Greedy: the beam of the most probable paths. Sampling: distinct draws at the root, a path from each."""
    drafter = DraftModelDrafter(DraftModelConfig(width=3), TinyModels())
    asked = request([5, 6, 7], temperature=temperature)
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(4))
    kinds = {draw.kind for draws in tree.draws_N for draw in draws}
    assert kinds == ({"without_replacement"} if temperature else {"chosen"})
    assert [tree.depth_N.count(d) for d in range(5)] == [1, 3, 3, 3, 3]


def test_a_static_tree_ends_before_it_outgrows_its_limit() -> None:
    drafter = DraftModelDrafter(DraftModelConfig(growth="static", widths=[10]), TinyModels())
    asked = request([5, 6, 7])
    drafter.start(asked)
    tree = drafter.propose(asked, Budget(5))
    assert tree.depth == 3 and tree.size == 1111


@pytest.mark.parametrize("nodes", [2, 4, 9])
@pytest.mark.parametrize(
    "config",
    [
        DraftModelConfig(width=3),
        DraftModelConfig(growth="dynamic", width=3, max_nodes=20),
        DraftModelConfig(growth="static", widths=[3, 2]),
        DraftModelConfig(growth="static", widths=[5, 2], children="with_replacement"),
        DraftModelConfig(growth="static", widths=[5, 2], children="without_replacement"),
    ],
    ids=lambda config: f"{config.growth} {config.children}",
)
def test_a_tree_has_no_more_nodes_than_its_budget(config: DraftModelConfig, nodes: int) -> None:
    sizes = []
    for budget in (Budget(4), Budget(min(4, nodes - 1), nodes)):
        drafter, asked = DraftModelDrafter(config, TinyModels()), request([5, 6, 7], temperature=1.0)
        drafter.start(asked)
        sizes.append(drafter.propose(asked, budget).size)
    assert sizes[0] > 9 and 2 <= sizes[1] <= nodes
