"""Trees through a session against recomputing every path from scratch, and batches against every request alone.

Legend: B requests, N rows, T tree slots, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.model.block_runner import BlockRunner
from spec_sdk.model.executor import Cache, PassOutput, PassPlan
from spec_sdk.model.lipschitz import EstimateOfRun
from spec_sdk.model.runners.attention_speculative import AttentionSpeculativeRunner
from spec_sdk.model.runners.layer_parallel import LayerParallelRunner
from spec_sdk.model.runners.sequential import PLAIN
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.tree import TokenTree, TreeBuilder
from spec_sdk_predictors.h2o import H2O, H2OConfig
from spec_sdk_verifiers.l2_threshold import L2Threshold, L2ThresholdConfig
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import VOCABULARY
from tests.support.tiny_decoder import tiny_decoder, tiny_executor


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return tiny_executor()


def logits_from_scratch(executor: TorchExecutor, tokens: list[int]) -> torch.Tensor:
    """Logits after the last of ``tokens``, computed with no cache and no tree."""
    return Session(executor).score([0], [TokenTree.chain(tokens[0], tokens[1:])])[0].logits_NV[-1]


def random_builder(shape: random.Random, size: int) -> TreeBuilder:
    builder = TreeBuilder(shape.randrange(VOCABULARY))
    while builder.size < size:
        builder.add(shape.randrange(builder.size), shape.randrange(VOCABULARY), "chosen")
    return builder


def random_text(shape: random.Random, length: int) -> list[int]:
    return [shape.randrange(VOCABULARY) for _ in range(length)]


@pytest.mark.parametrize("model", ["smollm", "qwen2_moe"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), prefix=st.integers(0, 40), size=st.integers(1, 14))
@example(seed=0, prefix=0, size=14)
def test_every_node_is_scored_as_if_its_path_were_the_text(model: str, seed: int, prefix: int, size: int) -> None:
    executor, shape = tiny_executor(model), random.Random(seed)
    text = random_text(shape, prefix)
    tree = random_builder(shape, size).build().tree
    session = Session(executor)
    session.prefill(0, text)
    logits_NV = session.score([0], [tree])[0].logits_NV
    for node in range(tree.size):
        path = [tree.token_N[i] for i in tree.path_to(node)]
        assert (logits_NV[node] - logits_from_scratch(executor, text + path)).abs().max() < 1e-4
    kept = tree.path_to(shape.randrange(tree.size))
    session.commit([0], [kept])
    follow_up = session.score([0], [TokenTree.root_only(7)])[0].logits_NV[0]
    committed = text + [tree.token_N[i] for i in kept]
    assert session.tokens() == committed and session.length() == len(committed)
    assert (follow_up - logits_from_scratch(executor, [*committed, 7])).abs().max() < 1e-4


@pytest.mark.parametrize("model", ["smollm", "qwen2_moe"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 14))
def test_a_growing_tree_is_scored_as_the_closed_one(model: str, seed: int, size: int) -> None:
    """Slots in creation order, fed in random portions, give every node the logits of the finished tree."""
    executor, shape = tiny_executor(model), random.Random(seed)
    text = random_text(shape, 9)
    full = random_builder(shape, size)
    closed = Session(executor)
    closed.prefill(0, text)
    built = full.build()
    expected_NV = closed.score([0], [built.tree])[0].logits_NV

    session = Session(executor)
    session.prefill(0, text)
    assert (roots_of(session.feed([0], [[full.root]]))[0] - expected_NV[0]).abs().max() < 1e-4
    growing, logits_NV = TreeBuilder(full.root), [expected_NV[0]]
    while growing.size < full.size:
        new_nodes = shape.randint(1, full.size - growing.size)
        for node in range(growing.size, growing.size + new_nodes):
            growing.add(full.parent[node], full.token[node], "chosen")
        logits_NV.extend(rows_of(session.grow([0], [growing], [new_nodes]))[0])
    for slot, position in enumerate(built.preorder):
        assert (logits_NV[slot] - expected_NV[position]).abs().max() < 1e-4


def test_the_most_probable_are_found_by_the_executor_s_operations() -> None:
    """Of roots and of levels, of a draft model as of a target."""
    asked: list[int] = []

    class Counting(Ops):
        def top_log_probabilities(self, logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append(count)
            return super().top_log_probabilities(logits_NV, count)

    session = Session(TorchExecutor(tiny_decoder("smollm"), Counting()))
    session.feed([0], [[5, 6, 7]])[0].top(3)
    tree = TreeBuilder(7)
    tree.add(0, 8, "chosen")
    session.grow([0], [tree], [1])[0].within(40).top(2)
    assert asked == [3, 2]


def test_rolling_back_forgets(executor: TorchExecutor) -> None:
    session = Session(executor)
    session.prefill(0, [5, 6, 7, 8, 9, 10])
    session.truncate(0, 3)
    (logits_V,) = roots_of(session.feed([0], [[20, 21]]))
    assert session.length() == 5
    assert (logits_V - logits_from_scratch(executor, [5, 6, 7, 20, 21])).abs().max() < 1e-4


def test_the_context_is_checked_before_a_pass(executor: TorchExecutor) -> None:
    session = Session(executor)
    context = executor.config.max_context
    session.prefill(0, [5] * context)
    session.prefill(1, [5])
    with pytest.raises(UserError, match=f"context of {context} tokens"):
        session.score([1, 0], [TokenTree.root_only(5)] * 2)
    assert (session.length(0), session.length(1)) == (context, 1)


def test_tokens_that_the_model_does_not_have_are_refused(executor: TorchExecutor) -> None:
    bad = TokenTree.chain(5, [6, VOCABULARY])
    with pytest.raises(ValueError, match=f"tree node 2: token {VOCABULARY} lies outside the vocabulary"):
        Session(executor).score([0, 1], [TokenTree.root_only(5), bad])


class Padding(TorchExecutor):
    """Pads passes to powers of two, as an executor does that captures them; ``padded`` counts those that were."""

    padded = 0

    def rows_of(self, rows: int) -> int:
        return 1 << (rows - 1).bit_length()

    def slots_of(self, slots: int) -> int:
        return 1 << slots.bit_length()

    def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        N, T = inputs.width, inputs.key_end_BT.shape[1]
        assert N & (N - 1) == 0 and T & (T - 1) == 0
        self.padded += any(part.live < N or part.slots < T for part in inputs.parts)
        return super().forward(inputs, cache, plan)


class Story:
    """One request: a text, fed in part; a tree grown and closed behind it; then what is kept of the tree."""

    def __init__(self, shape: random.Random, longest: int = 40, most_nodes: int = 14) -> None:
        self.text = random_text(shape, shape.randint(1, longest))
        self.fed = shape.randint(1, len(self.text))
        self.full = random_builder(shape, shape.randint(2, most_nodes))
        self.tree = self.full.build().tree
        self.portions = []
        left = self.full.size - 1
        while left:
            self.portions.append(shape.randint(1, left))
            left -= self.portions[-1]
        self.kept = self.tree.path_to(shape.randrange(self.tree.size))
        self.last = shape.randrange(VOCABULARY)


def told(session: Session, slots: Sequence[int], stories: Sequence[Story]) -> list[list[torch.Tensor]]:
    """Every request's logits [rows, V] of every call, the calls made for all requests together."""
    found: list[list[torch.Tensor]] = [[] for _ in stories]
    for slot, story in zip(slots, stories, strict=True):
        session.open(slot, ())
        session.prefill(slot, story.text[: -story.fed])

    def note(parts: Sequence[torch.Tensor], who: Sequence[int]) -> None:
        for i, logits in zip(who, parts, strict=True):
            found[i].append(logits.reshape(-1, logits.shape[-1]).clone())

    everyone = range(len(stories))
    note(roots_of(session.feed(slots, [story.text[-story.fed :] for story in stories])), everyone)
    note(roots_of(session.feed(slots, [[story.full.root] for story in stories])), everyone)
    growing = [TreeBuilder(story.full.root) for story in stories]
    for level in range(max(len(story.portions) for story in stories)):
        who = [i for i in everyone if level < len(stories[i].portions)]
        for i in who:
            tree, full = growing[i], stories[i].full
            for node in range(tree.size, tree.size + stories[i].portions[level]):
                tree.add(full.parent[node], full.token[node], "chosen")
        counts = [stories[i].portions[level] for i in who]
        note(rows_of(session.grow([slots[i] for i in who], [growing[i] for i in who], counts)), who)
    for slot in slots:
        session.truncate(slot, session.length(slot) - 1)
    note([scores.logits_NV for scores in session.score(slots, [story.tree for story in stories])], everyone)
    session.commit(slots, [story.kept for story in stories])
    after = session.score(slots, [TokenTree.root_only(story.last) for story in stories])
    note([scores.logits_NV for scores in after], everyone)
    for slot, story in zip(slots, stories, strict=True):
        assert session.tokens(slot) == story.text + [story.tree.token_N[node] for node in story.kept]
    return found


def guessing(estimate: EstimateOfRun | None = None) -> AttentionSpeculativeRunner:
    return AttentionSpeculativeRunner(lambda: H2O(H2OConfig(3)), L2Threshold(L2ThresholdConfig(0.3)), estimate=estimate)


RUNNERS: dict[str, Callable[[], BlockRunner]] = {
    "sequential": lambda: PLAIN,
    "layer_parallel": lambda: LayerParallelRunner.of([[0], [1, 2, 3], [4]]),
    "by_layer": lambda: LayerParallelRunner.of([[0], [1, 2, 3], [4]], fused=False),
    "attention": guessing,
}


def assert_as_alone(found: Sequence[Sequence[torch.Tensor]], alone: Sequence[Sequence[torch.Tensor]]) -> None:
    """Logits within 1e-4, and the same greedy choices."""
    for ours, theirs in zip(found, alone, strict=True):
        for together_NV, alone_NV in zip(ours, theirs, strict=True):
            assert together_NV.shape == alone_NV.shape
            assert (together_NV - alone_NV).abs().max() < 1e-4
            assert torch.equal(together_NV.argmax(-1), alone_NV.argmax(-1))


@pytest.mark.parametrize(
    ("runner", "model", "padding"),
    [
        *(pytest.param(runner, "smollm", False, id=f"{runner}-as it is") for runner in RUNNERS),
        *(pytest.param(runner, "smollm", True, id=f"{runner}-padded") for runner in RUNNERS),
        *(pytest.param(runner, "qwen2_moe", True, id=f"{runner}, experts-padded") for runner in RUNNERS),
        # experts are of rows, and among those of the padded passes are the same
        *(
            pytest.param(runner, "qwen2_moe", False, id=f"{runner}, experts-as it is", marks=pytest.mark.full)
            for runner in RUNNERS
        ),
    ],
)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32), requests=st.integers(1, 6))
def test_a_batch_gives_each_request_what_it_gets_alone(
    runner: str, model: str, padding: bool, seed: int, requests: int
) -> None:
    """Other lengths, trees of other sizes, slots in any order and with gaps; and once more in the same slots."""
    shape, decoder = random.Random(seed), tiny_decoder(model)
    together = Session((Padding if padding else TorchExecutor)(decoder, Ops()), RUNNERS[runner]())
    for _ in range(2):
        stories = [Story(shape) for _ in range(requests)]
        slots = shape.sample(range(2 * requests), requests)
        alone = [told(Session(tiny_executor(model), RUNNERS[runner]()), [0], [story])[0] for story in stories]
        assert_as_alone(told(together, slots, stories), alone)


def test_passes_are_padded_and_padding_is_no_part_of_what_comes_back(executor: TorchExecutor) -> None:
    padding = Padding(executor.decoder, Ops())
    trees = [TokenTree.chain(5, [6, 7]), TokenTree.chain(8, [9, 10, 11])]
    scores = Session(padding).score([2, 0], trees, taps=[0, 3])
    assert padding.padded == 1
    for found, tree in zip(scores, trees, strict=True):
        assert found.logits_NV.shape == (tree.size, VOCABULARY)
        assert {h_NM.shape[0] for h_NM in found.hidden.values()} == {tree.size} and set(found.hidden) == {0, 3}


def test_requests_of_one_size_make_one_pass(executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose rows would be mostly padding go apart."""
    batches: list[tuple[int, int]] = []
    forward = TorchExecutor.forward

    def spy(self: TorchExecutor, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
        batches.append((inputs.batch, inputs.width))
        return forward(self, inputs, cache, plan)

    monkeypatch.setattr(TorchExecutor, "forward", spy)
    trees = [TokenTree.root_only(5), TokenTree.chain(5, [6] * 15), TokenTree.root_only(7), TokenTree.chain(5, [6] * 9)]
    Session(executor).score([0, 1, 2, 3], trees)
    assert sorted(batches) == [(2, 1), (2, 16)]


def test_a_request_is_untouched_by_what_its_neighbours_do(executor: TorchExecutor) -> None:
    """Commits, roll-backs and new requests in other slots, and a cache that grows for them."""
    session = Session(executor)
    session.prefill(1, [5, 6, 7])
    (before,) = session.score([1], [TokenTree.chain(8, [9])])
    session.prefill(0, [11] * 90)
    session.prefill(3, [12, 13])
    session.score([0, 3], [TokenTree.chain(20, [21, 22])] * 2)
    session.commit([0, 3], [[0, 1], [0]])
    session.truncate(0, 4)
    session.open(3, [30])
    (after,) = session.score([1], [TokenTree.chain(8, [9])])
    assert torch.equal(before.logits_NV, after.logits_NV)
    assert [session.length(slot) for slot in range(4)] == [4, 3, 0, 0]


def test_every_request_has_a_report_of_its_own() -> None:
    """Other prefixes, so that other layers are hit; and of the rows that are no padding."""
    texts = [random_text(random.Random(length), length) for length in (31, 9, 24)]
    trees = [TokenTree.chain(5, [6, 7, 8]), TokenTree.chain(9, [10, 11]), TokenTree.chain(12, [13, 14, 15])]

    def reports(numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        # norms of the hidden states are measured where error bounds are asked for
        session = Session(tiny_executor(), guessing(EstimateOfRun()))
        for slot, number in enumerate(numbers):
            session.prefill(slot, texts[number])
        found = []
        for scores in session.score(range(len(numbers)), [trees[number] for number in numbers]):
            assert scores.attention is not None
            rows = [row for layer in scores.attention.row_error for row in layer or ()]
            found.append((scores.attention.hit, rows, list(scores.attention.state_norm)))
        return found

    together, alone = reports([0, 1, 2]), [reports([number])[0] for number in range(3)]
    for (hit, rows, norms), (hit_alone, rows_alone, norms_alone) in zip(together, alone, strict=True):
        assert hit == hit_alone and norms
        assert rows == pytest.approx(rows_alone, abs=1e-4) and norms == pytest.approx(norms_alone, rel=1e-4)
    assert len({hit for hit, _, _ in alone}) > 1
