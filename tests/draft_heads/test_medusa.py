"""The drafter ``medusa``: the tree is the most probable one, it conforms, and no answer changes."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import TreeBuilder
from spec_sdk_drafters.medusa import MedusaConfig, MedusaDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.position_tree import Candidates, most_probable_tree
from spec_sdk_samplers.reference import ReferenceSampler
from tests.draft_heads.test_drafter import PROMPTS, Served, answers, greedy_answer, pipeline_of, target_session
from tests.draft_heads.test_losslessness import PROMPT, SAMPLINGS, VERIFIERS, VOCABULARY, Granted, TableModels
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support import tiny_checkpoints
from tests.support.tiny_heads import HeadSizes, random_ends
from tests.support.tiny_medusa import write_medusa
from tests.support.tiny_models import TinyModels

MODELS, SIZES = TinyModels(), HeadSizes()


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_medusa(tmp_path_factory.mktemp("medusa") / "heads", SIZES)


def drafter_of(heads: Path, models: TinyModels = MODELS, **options: Any) -> MedusaDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "medusa", "checkpoint": str(heads), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, MedusaDrafter)
    return drafter


# --- which tree ---


def paths_of(tree: TreeBuilder) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parent[1:], tree.token[1:], strict=True):
        paths.append((*paths[parent], token))
    return set(paths[1:])


def random_positions(seed: int) -> list[Candidates]:
    choose, positions = random.Random(seed), list[Candidates]()
    for _ in range(choose.randint(1, 4)):
        probabilities = sorted((choose.random() for _ in range(choose.randint(1, 5))), reverse=True)
        tokens = choose.sample(range(20), len(probabilities))
        positions.append([(token, p / 3) for token, p in zip(tokens, probabilities, strict=True)])
    return positions


@pytest.mark.parametrize("seed", range(30))
def test_no_other_tree_is_more_probable(seed: int) -> None:
    """All paths there are, sorted by their products: the best ones are the tree."""
    positions = random_positions(seed)
    joint = {
        tuple(token for token, _ in path): math.prod(probability for _, probability in path)
        for depth in range(1, len(positions) + 1)
        for path in itertools.product(*positions[:depth])
    }
    for depth, nodes in itertools.product((1, 2, 4), (2, 3, 7, 40)):
        within = sorted((path for path in joint if len(path) <= depth), key=lambda path: -joint[path])
        tree = most_probable_tree(99, positions, Budget(depth, nodes), "test")
        assert paths_of(tree) == set(within[: nodes - 1])
        # what is not worth its place is left out
        cost = 0.05
        paid = most_probable_tree(99, positions, Budget(depth, nodes, tuple(cost * i for i in range(nodes))), "test")
        assert paths_of(paid) == {path for path in within[: nodes - 1] if joint[path] > cost}


def test_a_token_without_probability_is_not_drafted() -> None:
    tree = most_probable_tree(0, [[(3, 1.0), (4, 0.0)], [(5, 0.5), (6, 0.0)]], Budget(2, 10), "test")
    assert paths_of(tree) == {(3,), (3, 5)}


def test_head_i_stands_at_depth_i_plus_1(heads: Path) -> None:
    """Each depth has its own head's best tokens, of the state before the pending token."""
    drafter = drafter_of(heads, candidates=3, max_nodes=500)
    served = Served(drafter, [4, 8, 15, 16, 23], 3)
    for _ in range(4):
        text = list(served.request.tokens)
        session = target_session()
        states = session.prefill(0, text[:-1], drafter.taps)[5][-1:]
        best = [logits_1V[0].topk(3).indices.tolist() for logits_1V in drafter.heads.logits({5: states}, 3)]
        tree = served.cycle(Budget(3))
        assert tree.size == 1 + 3 + 9 + 27
        for node in range(1, tree.size):
            assert tree.token_N[node] in best[tree.depth_N[node] - 1]


def test_a_new_request_has_no_state_of_the_slots_last_one(heads: Path) -> None:
    """One of a single token has nothing to draft from yet; finished or not, the one before it does not matter."""
    drafter = drafter_of(heads, candidates=1)
    served = Served(drafter, [4, 8, 15, 16, 23], 3)
    assert served.cycle(Budget(3)).depth == 3
    request = request_for([7], ReferenceSampler(None, SamplingParams()), 0)
    drafter.start([request.view], [target_session().prefill(0, [], drafter.taps)])
    assert drafter.propose([request.view], [Budget(3)])[0].size == 1
    drafter.finish([request.view])
    assert not drafter._last_1M


def test_no_more_depth_than_heads(heads: Path) -> None:
    for depth in (1, 2, 3, 9):
        assert Served(drafter_of(heads, candidates=1), [4, 8, 15], 3).cycle(Budget(depth)).depth == min(depth, 3)


def test_the_repetition_penalty_reaches_every_depth(heads: Path) -> None:
    def tree(penalty: float) -> Any:
        drafter, params = drafter_of(heads, candidates=2), SamplingParams(temperature=1.0, repetition_penalty=penalty)
        request = request_for(list(range(5, 96)) * 2, ReferenceSampler(None, params), 0)
        drafter.start([request.view], [target_session().prefill(0, request.tokens[:-1], drafter.taps)])
        return drafter.propose([request.view], [Budget(3)])[0]

    free, penalised = tree(1.0), tree(1e6)
    assert any(token >= 5 for token in free.token_N[1:])
    # the five tokens that are not in the text are all that is left
    for depth in (1, 2, 3):
        at_depth = {token for token, d in zip(penalised.token_N, penalised.depth_N, strict=True) if d == depth}
        assert at_depth and at_depth <= set(range(5))


# --- losslessness ---


@pytest.mark.parametrize("options", [{}, {"candidates": 1}, {"max_nodes": 5}])
def test_conformance(options: dict[str, Any], heads: Path) -> None:
    check_drafter(
        lambda: drafter_of(heads, **options),
        tiny_checkpoints.VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=20,
        target=target_session(),
    )


def test_greedy_answers_are_those_of_plain_decoding(heads: Path) -> None:
    # of one token: there is no state before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        assert greedy_answer(lambda: drafter_of(heads), prompt, new_tokens=30) == greedy_answer(
            lambda: NoDraft(None, MODELS), prompt, new_tokens=30
        )


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("verifier", "candidates"),
    [
        ("multi_step", 1),
        ("multi_step", 3),
        ("naive_tree", 3),
        ("chain_rejection", 1),
        ("block_verification", 1),
    ],
)
def test_every_outcome_of_a_cycle(verifier: str, candidates: int, sampling: str, tmp_path: Path) -> None:
    sizes = replace(SIZES, V=VOCABULARY, S=VOCABULARY)
    write_medusa(tmp_path / "heads", sizes, heads=2)
    models = TableModels(random_ends(sizes, 1, dtype=torch.float32))
    target, params = TableModel(VOCABULARY, 0), SAMPLINGS[sampling]
    config, longest = MedusaConfig(str(tmp_path / "heads"), candidates=candidates), 0
    for nodes in (3, 12):
        # one candidate at every depth is a chain
        policy = Granted(Budget(2, nodes))
        emitted = cycle_distribution(
            target, lambda: MedusaDrafter(config, models), VERIFIERS[verifier], params, PROMPT, policy=policy
        )
        length = max(map(len, emitted))
        distribution = completed_distribution(emitted, target, params, PROMPT, length)
        expected = joint_distribution(target, ReferenceSampler(None, params), PROMPT, length)
        assert (distribution - expected).abs().max() < 1e-6
        longest = max(longest, length)
    # a chain may consist of what top-k leaves out
    assert longest > 1 or candidates == 1


# --- pipelines ---


@pytest.mark.parametrize("sampling", [(), ("sampling.temperature=0.8", "sampling.repetition_penalty=1.1")])
def test_tokens_are_the_same_alone_and_among_others(sampling: tuple[str, ...], target: Path, heads: Path) -> None:
    pipeline = pipeline_of(target, "pipeline=medusa_tree", f"drafter.checkpoint={heads}", *sampling)
    alone = {i: answers(pipeline, 1, PROMPTS[: i + 1])[i] for i in (0, 3, 5)}
    for slots in (2, 6):
        together = answers(pipeline, slots, PROMPTS)
        assert {i: together[i] for i in alone} == alone
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together


def test_in_a_merged_drafter(target: Path, heads: Path) -> None:
    members = f"{{name: medusa, checkpoint: {heads}, max_nodes: 6}}, {{name: prompt_lookup}}"
    pipeline = pipeline_of(target, "pipeline=specinfer_tree", f"drafter.members=[{members}]")
    assert answers(pipeline, 3, PROMPTS) == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)
