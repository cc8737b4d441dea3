"""The drafter ``block``: it conforms, no answer changes, and its cache holds the context alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.model import session as sessions
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.registry import Registry
from spec_sdk.testing import TableModel, check_drafter, joint_distribution
from spec_sdk.testing.defaults import request_for
from spec_sdk_drafters import unfed_states
from spec_sdk_drafters.block import BlockConfig, BlockDrafter
from spec_sdk_drafters.no_draft import NoDraft
from spec_sdk_samplers.reference import ReferenceSampler
from tests.draft_heads.plain_block import PlainBlock
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
from tests.draft_heads.test_losslessness import PROMPT, SAMPLINGS, VERIFIERS, VOCABULARY, Granted, TableModels
from tests.losslessness.enumeration import completed_distribution, cycle_distribution
from tests.support import tiny_checkpoints
from tests.support.tiny_blocks import MASK, BlockSizes, block_tensors, write_dflash, write_dspark
from tests.support.tiny_heads import random_ends
from tests.support.tiny_models import TinyModels

MODELS = TinyModels()
LEAVING = (0, 2, 4)
"""The target has five blocks."""
DFLASH = BlockSizes(V=tiny_checkpoints.VOCABULARY, W=tiny_checkpoints.VOCABULARY)
HEADS: dict[str, BlockSizes] = {
    "dflash": DFLASH,
    "dspark": replace(DFLASH, W=40, rank=6, confidence=True),
    "rnn": replace(DFLASH, rank=6, markov="rnn"),
}
ALL: dict[str, Any] = {"min_probability": 0.0}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("heads")
    return {
        name: (write_dspark if sizes.rank else write_dflash)(directory / name, sizes, leaving=LEAVING)
        for name, sizes in HEADS.items()
    }


def drafter_of(head: Path, models: TinyModels = MODELS, **options: Any) -> BlockDrafter:
    """As YAML describes it."""
    plugin: Any
    plugin, config = Registry.discover().configure("drafter", {"name": "block", "checkpoint": str(head), **options})
    drafter = plugin(config, models)
    assert isinstance(drafter, BlockDrafter)
    return drafter


@pytest.mark.parametrize(
    ("head", "options"),
    [("dflash", {"max_nodes": 9, **ALL}), ("dspark", {"max_nodes": 9, **ALL})],
)
def test_conformance(head: str, options: dict[str, Any], heads: dict[str, Path]) -> None:
    check_drafter(
        lambda: drafter_of(heads[head], **options),
        tiny_checkpoints.VOCABULARY,
        prompts=[[5], [9, 3, 3, 60, 17, 9, 3]],
        draws=20,
        target=target_session(),
    )


@pytest.mark.parametrize("head", HEADS)
def test_a_drafter_in_use_drafts_as_a_fresh_one_would(head: str, heads: dict[str, Path]) -> None:
    """Its cache holds what the target's own states of the same text would have put there, and no block."""
    used = Served(drafter_of(heads[head], candidates=3, **ALL), [4, 8, 15, 16, 23], 3)
    for depth in (4, 1, 4, 2, 4, 4):
        text = list(used.request.tokens)
        fresh = Served(drafter_of(heads[head], candidates=3, **ALL), text, 0)
        (expected,) = fresh.drafter.propose([fresh.request.view], [Budget(depth)])
        tree = used.cycle(Budget(depth))
        assert (tree.token_N, tree.parent_N) == (expected.token_N, expected.parent_N) and expected.depth == depth
        assert isinstance(used.drafter, BlockDrafter) and used.drafter.session.length(0) == len(text) - 1


@pytest.mark.parametrize("head", HEADS)
def test_a_chain_is_what_the_formulas_guess(head: str, heads: dict[str, Path]) -> None:
    """Depth 1 is the token after the pending one, whichever slot predicts it; several cycles deep."""
    sizes = HEADS[head]
    drafter = drafter_of(heads[head], candidates=1, **ALL)
    target: Any = MODELS.target.executor
    plain = PlainBlock(
        sizes.body(),
        block_tensors(sizes),
        end_tensors(TargetEnds.of("tiny", target.decoder)),
        block=sizes.block,
        mask=MASK,
        from_anchor=bool(sizes.rank),
        causal=[False] * sizes.layers,
        windows=[None] * sizes.layers,
    )
    served = Served(drafter, [4, 8, 15, 16, 23], 3)
    for _ in range(3):
        text = list(served.request.tokens)
        hidden = target_session().prefill(0, text[:-1], drafter.taps)
        returned = plain.returned(text, [hidden[layer] for layer in drafter.head.taps])
        known = [text[-1]]
        for _ in range(4):
            known.append(int(plain.after_known(returned, known).argmax()))
        assert list(served.cycle(Budget(4)).token_N) == known


def test_drafts_do_not_depend_on_how_deep_others_draft(heads: dict[str, Path]) -> None:
    """A block is always whole: less depth is a smaller part of the same tree."""
    for head in HEADS:
        served = Served(drafter_of(heads[head], candidates=1, **ALL), [4, 8, 15, 16, 23], 3)
        propose, view = served.drafter.propose, [served.request.view]
        chains = [propose(view, [Budget(depth)])[0].token_N for depth in (1, 2, 3, 4, 9)]
        longest = 5 if head != "dflash" else 4
        assert [len(chain) - 1 for chain in chains] == [1, 2, 3, 4, longest]
        assert all(chains[-1][: len(chain)] == chain for chain in chains)


def test_long_prompts_and_long_silence_are_fed_in_parts(
    heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drafted(drafter: BlockDrafter) -> list[Any]:
        served = Served(drafter, list(range(5, 25)), 0)
        trees = [served.cycle(Budget(4)).token_N for _ in range(3)]
        for _ in range(9):
            # plain steps: nothing is proposed
            (scores,) = served.target.score([0], [eagle_root(served.request)], drafter.taps)
            served.target.commit([0], [[0]])
            served.request.tokens.append(7)
            drafter.observe([served.request.view], [[7]], [{k: h[:1] for k, h in scores.hidden.items()}])
        return [*trees, served.cycle(Budget(4)).token_N]

    whole = drafted(drafter_of(heads["dflash"], **ALL))
    for module in (sessions, unfed_states):
        monkeypatch.setattr(module, "PREFILL_CHUNK", 4)
    assert drafted(drafter_of(heads["dflash"], **ALL)) == whole


def test_drafting_stops_where_a_whole_block_has_no_room(heads: dict[str, Path]) -> None:
    # ten tokens: the block of five lies at positions 9 to 13
    for context, depth in ((None, 4), (14, 4), (13, 0), (6, 0)):
        served = Served(drafter_of(heads["dflash"], context=context, candidates=1, **ALL), list(range(5, 15)), 0)
        assert served.cycle(Budget(8)).depth == depth
        depths = [served.cycle(Budget(3)).depth for _ in range(6)]
        assert depths == sorted(depths, reverse=True) and (depths[-1] == 0) == (context is not None)


@pytest.mark.parametrize("head", ["dflash", "dspark"])
def test_prices_and_small_probabilities_make_smaller_trees(head: str, heads: dict[str, Path]) -> None:
    def size(min_probability: float, price: float) -> int:
        drafter = drafter_of(heads[head], min_probability=min_probability)
        served = Served(drafter, [4, 8, 15, 16, 23], 3)
        prices = tuple(price * n for n in range(64)) if price else ()
        return drafter.propose([served.request.view], [Budget(4, 64, prices)])[0].size

    limit = 0.02 if head == "dflash" else 0.005
    assert size(0.0, 0.0) == 64
    # a node of that price is worth it from that probability on
    assert 3 < size(limit, 0.0) == size(0.0, limit) < 64


def test_the_confidence_head_bounds_what_is_drafted(heads: dict[str, Path], tmp_path: Path) -> None:
    """Where it is sure that nothing is accepted, nothing is drafted; without it the same head drafts."""
    served = Served(drafter_of(heads["dspark"]), [4, 8, 15, 16, 23], 3)
    head: Any = served.drafter
    sure, view = head.head.confidence, [served.request.view]
    assert head.propose(view, [Budget(4)])[0].size > 1
    for factor, expected in ((0.0, 1), (1.0, None)):
        head.head.confidence = scaled(sure, factor)
        size = head.propose(view, [Budget(4)])[0].size
        assert size == expected if expected else size > 1


def scaled(confidence: Any, factor: float) -> Any:
    def answer(*inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = confidence(*inputs) * factor
        return found

    answer.reads_token = confidence.reads_token  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("head", ["dflash", "dspark"])
def test_the_repetition_penalty_reaches_every_depth(head: str, heads: dict[str, Path]) -> None:
    drafter = drafter_of(heads[head], candidates=2, **ALL)
    for penalty in (1.0, 1e6):
        params = SamplingParams(temperature=1.0, repetition_penalty=penalty)
        # all tokens but some that both heads know
        text = [token for token in range(96) if token % 8] * 2
        request = request_for(text, ReferenceSampler(None, params), 0)
        drafter.start([request.view], [target_session().prefill(0, text[:-1], drafter.taps)])
        tree = drafter.propose([request.view], [Budget(3)])[0]
        rare = [depth for token, depth in zip(tree.token_N, tree.depth_N, strict=True) if token % 8 == 0]
        assert len(rare) == tree.size - 1 and {1, 2, 3} <= set(rare) if penalty > 1 else len(rare) < tree.size - 1


def test_greedy_answers_are_those_of_plain_decoding(heads: dict[str, Path]) -> None:
    # of one token: there is no context before the first step
    for prompt in ([30, 31, 32, 40], [9]):
        plain = greedy_answer(lambda: NoDraft(None, MODELS), prompt)
        for head in HEADS:
            assert greedy_answer(lambda head=head: drafter_of(heads[head]), prompt) == plain  # type: ignore[misc]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("head", "verifier", "candidates"),
    [
        ("dflash", "multi_step", 3),
        ("dspark", "multi_step", 3),
        ("dspark", "multi_step", 1),
        ("dspark", "naive_tree", 3),
        ("dspark", "chain_rejection", 1),
        ("dspark", "block_verification", 1),
    ],
)
def test_every_outcome_of_a_cycle(head: str, verifier: str, candidates: int, sampling: str, tmp_path: Path) -> None:
    sizes = BlockSizes(V=4, W=4, M=16, S=4, heads=2, kv_heads=1, head_dim=8, mlp=16, block=3)
    sizes = replace(sizes, W=3, rank=4, confidence=True) if head == "dspark" else sizes
    write = write_dspark if head == "dspark" else write_dflash
    options: dict[str, Any] = {"mask_token_id": 0} if head == "dspark" else {"dflash_config": {"mask_token_id": 0}}
    write(tmp_path / "head", sizes, leaving=(0, 1, 2), **options)
    models = TableModels(random_ends(sizes, 3, dtype=torch.float32))
    table, params = TableModel(VOCABULARY, 0), SAMPLINGS[sampling]
    config, longest = BlockConfig(str(tmp_path / "head"), candidates=candidates, min_probability=0.0), 0
    for nodes in (3, 12):
        # one candidate behind every node is a chain
        policy = Granted(Budget(2, nodes))
        emitted = cycle_distribution(
            table, lambda: BlockDrafter(config, models), VERIFIERS[verifier], params, PROMPT, policy=policy
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
    ("head", "sampling"), [("dflash", ()), ("rnn", ("sampling.temperature=0.8", "sampling.repetition_penalty=1.1"))]
)
def test_tokens_are_the_same_alone_and_among_others(
    head: str, sampling: tuple[str, ...], target: Path, heads: dict[str, Path]
) -> None:
    pipeline = pipeline_of(target, "pipeline=block_tree", f"drafter.checkpoint={heads[head]}", *sampling)
    alone = {i: answers(pipeline, 1, PROMPTS[: i + 1])[i] for i in (0, 3, 5)}
    for slots in (2, 6):
        together = answers(pipeline, slots, PROMPTS)
        assert {i: together[i] for i in alone} == alone
    if not sampling:
        assert answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS) == together


def test_in_a_merged_drafter_and_with_a_cache_in_8_bits(target: Path, heads: dict[str, Path]) -> None:
    members = f"{{name: block, checkpoint: {heads['dspark']}, max_nodes: 6}}, {{name: prompt_lookup}}"
    pipeline = pipeline_of(target, "pipeline=specinfer_tree", f"drafter.members=[{members}]")
    plain = answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS)
    assert answers(pipeline, 3, PROMPTS) == plain
    small = pipeline_of(target, "pipeline=block_tree", f"drafter.checkpoint={heads['dflash']}", "model.kv_cache=int8")
    of_small = answers(pipeline_of(target, "pipeline=vanilla", "model.kv_cache=int8"), 1, PROMPTS)
    assert answers(small, 3, PROMPTS) == of_small
