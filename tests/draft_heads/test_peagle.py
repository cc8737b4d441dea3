"""The drafter ``peagle``: it conforms, no answer changes, and its cache holds pairs of the target's states alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget
from spec_sdk.model import session as sessions
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, joint_distribution
from spec_sdk_drafters import unfed_states
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_drafters.peagle import PEagleConfig, PEagleDrafter
from spec_sdk_samplers.reference import ReferenceSampler
from tests.draft_heads.plain_peagle import PlainPEagle
from tests.draft_heads.test_drafter import (
    PROMPTS,
    Served,
    answers,
    eagle_root,
    greedy_answer,
    pipeline_of,
    target_session,
)
from tests.draft_heads.test_formulas import end_tensors
from tests.draft_heads.test_losslessness import HEADS as SMALL
from tests.draft_heads.test_losslessness import PROMPT, SAMPLINGS, VERIFIERS, VOCABULARY, Granted, TableModels
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support import tiny_checkpoints
from tests.support.tiny_heads import HeadSizes, random_ends
from tests.support.tiny_models import TinyModels
from tests.support.tiny_peagle import peagle_config, peagle_tensors, write_peagle

MODELS = TinyModels()
SIZES = HeadSizes()
LAYERS: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}
"""The target has five."""
ALL: dict[str, Any] = {"min_probability": 0.0}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By number of layers."""
    directory = tmp_path_factory.mktemp("heads")
    return {layers: write_peagle(directory / str(layers), SIZES, layers, **LAYERS) for layers in (1, 2)}


def drafter_of(head: Path, models: TinyModels = MODELS, **options: Any) -> PEagleDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "peagle", "checkpoint": str(head), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, PEagleDrafter)
    return drafter


@pytest.mark.parametrize("layers", [1, 2])
def test_conformance(layers: int, heads: dict[int, Path]) -> None:
    check_drafter(
        lambda: drafter_of(heads[layers], max_nodes=9, **ALL),
        tiny_checkpoints.VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=20,
        target=target_session(),
    )


def test_a_drafter_in_use_drafts_as_a_fresh_one_would(heads: dict[int, Path]) -> None:
    """Its cache holds pairs of the target's own states, and nothing of the positions that were guessed."""
    used = Served(drafter_of(heads[2], candidates=3, **ALL), [4, 8, 15, 16, 23], 3)
    for depth in (4, 1, 4, 2, 4, 4):
        text = list(used.request.tokens)
        fresh = Served(drafter_of(heads[2], candidates=3, **ALL), text, 0)
        (expected,) = fresh.drafter.propose([fresh.request.view], [Budget(depth)])
        tree = used.cycle(Budget(depth))
        assert (tree.token_N, tree.parent_N) == (expected.token_N, expected.parent_N) and expected.depth == depth
        assert isinstance(used.drafter, PEagleDrafter) and used.drafter.session.length(0) == len(text) - 1


def test_trees_are_the_most_probable_paths_of_the_formulas(heads: dict[int, Path]) -> None:
    """Their nodes have the probabilities of the formulas, and no path of more is left out; several cycles deep."""
    drafter = drafter_of(heads[2], max_nodes=15, **ALL)
    target: Any = MODELS.target.executor
    ends = end_tensors(TargetEnds.of("tiny", target.decoder))
    plain = PlainPEagle(peagle_config(SIZES), peagle_tensors(SIZES), *ends, prefix="midlayer")
    served = Served(drafter, [4, 8, 15, 16, 23], 3)
    for _ in range(3):
        text = list(served.request.tokens)
        hidden = target_session().prefill(0, text[:-1], drafter.taps)
        probability_PV = plain.ahead(text, [hidden[layer] for layer in drafter.head.taps], 3).softmax(-1)
        best = probability_PV.topk(10)
        top = [dict(zip(*rows, strict=True)) for rows in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        paths = {
            path: math.prod(top[depth][token] for depth, token in enumerate(path))
            for length in (1, 2, 3)
            for path in itertools.product(*(top[depth] for depth in range(length)))
        }
        tree = served.cycle(Budget(3))
        found = {tuple(tree.token_N[node] for node in tree.path_to(i)[1:]) for i in range(1, tree.size)}
        assert found == set(sorted(paths, key=lambda path: -paths[path])[:15])
        for node, draws in enumerate(tree.draws_N):
            for draw in draws:
                assert draw.probability == pytest.approx(top[tree.depth_N[node]][tree.token_N[draw.node]], abs=1e-4)


def test_drafts_do_not_depend_on_how_deep_others_draft(heads: dict[int, Path]) -> None:
    """Rows see nothing behind them, so fewer of them are a smaller part of the same guesses."""
    drafter = drafter_of(heads[2], candidates=1, **ALL)
    long, short = [4, 8, 15, 16, 23], [7, 8, 9]
    served = Served(drafter, long, 3)
    (alone,) = drafter.propose([served.request.view], [Budget(6)])
    both = [Served(drafter_of(heads[2], candidates=1, **ALL), text, 0) for text in (long, short)]
    other = both[0].drafter
    both[1].request.slot = 1
    other.start([both[1].request.view], [target_session().prefill(0, short[:-1], drafter.taps)])
    views = [each.request.view for each in both]
    trees = other.propose(views, [Budget(2), Budget(6)])
    assert trees[0].token_N == alone.token_N[:3] and trees[1].depth == 6


def test_long_prompts_and_long_silence_are_fed_in_parts(
    heads: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drafted(drafter: PEagleDrafter) -> list[Any]:
        served = Served(drafter, list(range(5, 25)), 0)
        trees = [served.cycle(Budget(4)).token_N for _ in range(3)]
        for _ in range(9):
            # plain steps: nothing is proposed
            (scores,) = served.target.score([0], [eagle_root(served.request)], drafter.taps)
            served.target.commit([0], [[0]])
            served.request.tokens.append(7)
            drafter.observe([served.request.view], [[7]], [{k: h[:1] for k, h in scores.hidden.items()}])
        return [*trees, served.cycle(Budget(4)).token_N]

    whole = drafted(drafter_of(heads[2], candidates=2, **ALL))
    for module in (sessions, unfed_states):
        monkeypatch.setattr(module, "PREFILL_CHUNK", 4)
    assert drafted(drafter_of(heads[2], candidates=2, **ALL)) == whole


def test_how_deep_it_drafts(heads: dict[int, Path], tmp_path: Path) -> None:
    """As the budget says, no deeper than the head was trained, and not behind the context's end."""
    trained = write_peagle(tmp_path, SIZES, num_depths=3, **LAYERS)
    for head, context, depth in ((heads[2], None, 8), (trained, None, 3), (heads[2], 15, 5), (heads[2], 10, 0)):
        served = Served(drafter_of(head, context=context, candidates=1, **ALL), list(range(5, 15)), 0)
        assert served.cycle(Budget(8)).depth == depth
        depths = [served.cycle(Budget(3)).depth for _ in range(6)]
        assert depths == sorted(depths, reverse=True) and (depths[-1] == 0) == (context is not None)


def test_greedy_answers_are_those_of_plain_decoding(heads: dict[int, Path]) -> None:
    # of one token: there is no pair before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        plain = greedy_answer(lambda: NoDraft(None, MODELS), prompt)
        assert greedy_answer(lambda: drafter_of(heads[2]), prompt) == plain


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("verifier", "candidates"),
    [("multi_step", 3), ("naive_tree", 3), ("chain_rejection", 1), ("block_verification", 1)],
)
def test_every_outcome_of_a_cycle(verifier: str, candidates: int, sampling: str, tmp_path: Path) -> None:
    sizes = SMALL["eagle3"]
    write_peagle(tmp_path, sizes, seed=1, ptd_token_id=0, eagle_aux_hidden_state_layer_ids=[0, 2, 3])
    models = TableModels(random_ends(sizes, 3, dtype=torch.float32))
    table, params = TableModel(VOCABULARY, 0), SAMPLINGS[sampling]
    config, longest = PEagleConfig(str(tmp_path), candidates=candidates, min_probability=0.0, weights="dense"), 0
    for nodes in (3, 12):
        # one candidate behind every node is a chain
        policy = Granted(Budget(2, nodes))
        emitted = cycle_distribution(
            table, lambda: PEagleDrafter(config, models), VERIFIERS[verifier], params, PROMPT, policy=policy
        )
        length = max(map(len, emitted))
        distribution = completed_distribution(emitted, table, params, PROMPT, length)
        expected = joint_distribution(table, ReferenceSampler(None, params), PROMPT, length)
        assert (distribution - expected).abs().max() < 1e-6
        longest = max(longest, length)
    # a chain may consist of what top-k leaves out
    assert longest > 1 or candidates == 1


# --- pipelines ---


@pytest.mark.parametrize(
    ("layers", "sampling"), [(2, ()), (1, ("sampling.temperature=0.8", "sampling.repetition_penalty=1.1"))]
)
def test_tokens_are_the_same_alone_and_among_others(
    layers: int, sampling: tuple[str, ...], target: Path, heads: dict[int, Path]
) -> None:
    pipeline = pipeline_of(target, "pipeline=peagle_tree", f"drafter.checkpoint={heads[layers]}", *sampling)
    alone = {i: answers(pipeline, 1, PROMPTS[: i + 1])[i] for i in (0, 3, 5)}
    together = answers(pipeline, 6, PROMPTS)
    assert {i: together[i] for i in alone} == alone
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together


def test_with_a_cache_in_8_bits(target: Path, heads: dict[int, Path]) -> None:
    small = pipeline_of(target, "pipeline=peagle_tree", f"drafter.checkpoint={heads[2]}", "model.kv_cache=int8")
    of_small = answers(pipeline_of(target, "pipeline=vanilla", "model.kv_cache=int8"), 1, PROMPTS)
    assert answers(small, 3, PROMPTS) == of_small
