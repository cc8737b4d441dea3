"""Finding groups by measurement: acceptance against drafting token by token, and the greedy search."""

from __future__ import annotations

import pytest
import torch

from spec_sdk.layer_tuning import (
    AcceptanceMeter,
    CycleTimes,
    Groups,
    Strategy,
    greedy_merging,
    mean_accepted,
    measure_times,
    merged,
    tiling,
)
from spec_sdk.model.layer_groups import check_groups
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree, TreeBuilder
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import ModelTensors, tiny_executor

LAYERS, DEPTH, SILENT = 6, 4, 3
PROMPTS = torch.randint(3, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    """A model whose layer SILENT attends in vain: its output projection is zero, so its input makes no difference."""
    loaded = load_decoder(ModelTensors("smollm", 3, num_hidden_layers=LAYERS), torch.device("cpu"), torch.float32)
    loaded.blocks[SILENT].output.weight_OI.zero_()
    return TorchExecutor(loaded, Ops())


def continuation(executor: TorchExecutor, prompt: list[int], tokens: int) -> list[int]:
    session, text = Session(executor), list(prompt)
    session.prefill(0, text[:-1])
    for _ in range(tokens):
        text.append(int(roots_of(session.feed([0], [[text[-1]]]))[0].argmax()))
    return text[len(prompt) :]


def accepted_one_by_one(
    draft: TorchExecutor, prompt: list[int], answer: list[int], position: int, groups: Groups, width: int
) -> int:
    """Drafting as the drafter does it, behind a freshly prefilled prefix, until a token is not the answer's."""
    text = [*prompt, *answer[:position]]
    session, tree = Session(draft, LayerParallelRunner.of(groups, fused=False)), TreeBuilder(text[-1])
    session.prefill(0, text[:-1])
    logits_V, node = roots_of(session.feed([0], [[text[-1]]]))[0], 0
    for count in range(DEPTH):
        token = answer[position + count]
        if token not in logits_V.topk(width).indices.tolist():
            return count
        node = tree.add(node, token, "chosen")
        logits_V = rows_of(session.grow([0], [tree], [1]))[0][0]
    return DEPTH


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("groups", [[[0], [1], [2], [3], [4]], [[0], [1, 2, 3], [4]], [[0, 1], [2, 3, 4]]], ids=str)
def test_acceptance_is_that_of_drafting_token_by_token(groups: Groups, width: int) -> None:
    """A draft model that is often, not always, right: the target's text with other tokens put in."""
    draft = tiny_executor("smollm", 1)
    counted = expected = positions = 0
    for prompt in PROMPTS:
        answer = continuation(draft, prompt, 14)
        answer[5], answer[10] = 40, 50
        meter = AcceptanceMeter(draft, prompt, answer, DEPTH, width)
        counted += meter.accepted(LayerParallelRunner.of(groups))
        # a second time: measuring leaves nothing behind
        assert meter.accepted(LayerParallelRunner.of(groups)) == meter.accepted(LayerParallelRunner.of(groups))
        positions += meter.positions
        expected += sum(accepted_one_by_one(draft, prompt, answer, at, groups, width) for at in range(14 - DEPTH + 1))
    assert positions == len(PROMPTS) * 11
    assert counted == expected
    assert 0 < counted < positions * DEPTH


def test_fewer_positions_are_spread_over_the_answer(executor: TorchExecutor) -> None:
    answer = continuation(executor, PROMPTS[0], 20)
    meter = AcceptanceMeter(executor, PROMPTS[0], answer, DEPTH, most_positions=6)
    assert meter.positions == 6
    assert meter.accepted(LayerParallelRunner.of([[i] for i in range(LAYERS)])) == 6 * DEPTH


def test_a_harmless_merge_is_found(executor: TorchExecutor) -> None:
    """A draft model that is its own target: every merge costs acceptance, but for layer SILENT's with the one before.

    Speed is given: every merge saves a little, so the outcome hangs on acceptance.
    """
    prompts = torch.randint(3, VOCABULARY, (12, 6), generator=torch.Generator().manual_seed(1)).tolist()
    texts = [(prompt, continuation(executor, prompt, 8)) for prompt in prompts]
    meters = [AcceptanceMeter(executor, prompt, answer, DEPTH) for prompt, answer in texts]
    times = CycleTimes(plain=1.0, saved={size: 0.001 * (size - 1) for size in range(2, 7)}, calibration=1.0, target=4.0)
    tried: list[Groups] = []

    def evaluate(groups: Groups) -> Strategy:
        tried.append(groups)
        accepted = mean_accepted(meters, groups)
        return Strategy(groups, accepted, times.tokens_per_second(groups, accepted, DEPTH))

    path = list(greedy_merging(LAYERS, evaluate, max_size=3))
    assert path[0].groups == [[i] for i in range(LAYERS)] and path[0].accepted == DEPTH
    assert path[-1].groups == [[0], [1], [2, 3], [4], [5]]
    assert path[-1].accepted == DEPTH and path[-1].score > path[0].score
    others = [evaluate(merged(path[0].groups, (i, i + 1))) for i in range(LAYERS - 1) if i + 1 != SILENT]
    assert all(other.score < path[0].score for other in others)
    assert all(len(group) <= 3 for groups in tried for group in groups)


def test_the_search_tries_few_candidates_and_stops_at_the_top() -> None:
    """On a made-up score in which large groups are good up to a size: every step is better, all are valid."""
    tried: list[Groups] = []

    def evaluate(groups: Groups) -> Strategy:
        tried.append(groups)
        return Strategy(groups, 0.0, sum(len(group) ** 2 for group in groups[1:]) - 9 * len(groups[0]))

    path = list(greedy_merging(12, evaluate, max_size=4, most_candidates=2))
    assert [check_groups(strategy.groups, 12, "test") for strategy in path]
    scores = [strategy.score for strategy in path]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)
    assert max(len(group) for group in path[-1].groups) == 4 and path[-1].groups[0] == [0]
    first_step, rest = 1 + 11, len(tried) - 12
    assert len(tried) > first_step and rest <= 2 * len(path) + len(path)


def test_the_score_is_tokens_per_second_of_the_cycle() -> None:
    times = CycleTimes(plain=0.5, saved={2: 0.1, 3: 0.25}, calibration=0.6, target=2.0)
    groups = [[0], [1, 2], [3, 4, 5], [6, 7]]
    assert times.fuzzy(groups) == pytest.approx(0.5 - 0.1 - 0.25 - 0.1)
    assert times.tokens_per_second(groups, 1.5, 5) == pytest.approx(2.5 / (0.6 + 4 * 0.05 + 2.0))


@pytest.mark.parametrize("width", [1, 3])
def test_times_are_taken_for_every_size(executor: TorchExecutor, width: int) -> None:
    waited: list[None] = []
    draft, target = Session(executor.cut([0, 1, 3, 5])), Session(executor)
    times = measure_times(draft, target, PROMPTS[0], 3, width, 9, lambda: waited.append(None))
    assert set(times.saved) == {2, 3, 4} and waited
    assert min(times.plain, times.calibration, times.target) > 0
    assert target.score([0], [TokenTree.root_only(5)])[0].logits_NV.shape == (1, VOCABULARY)
    assert tiling(8, 3) == [[0, 1, 2], [3, 4, 5], [6], [7]]
