"""All levels of a tree's draft as one launch: the tokens, K and V of the same levels fed one by one.

Legend: K nodes of a level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest
import torch

from spec_sdk.contracts import SamplingParams, TreeShape
from spec_sdk.model.executor import PassOutput
from spec_sdk.model.graph_executor import CannotCapture, Capture, GraphExecutor
from spec_sdk.model.runners.layer_parallel import LayerParallelConfig, LayerParallelRunner
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops, host_reads
from spec_sdk.ops.kept_tokens import numbers_of
from spec_sdk.ops.residual import without
from spec_sdk.testing import StaticOps, repeated
from spec_sdk.tree import TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from tests.support.tiny_decoder import tiny_decoder

PROMPTS = {2: [5, 9, 17, 30, 5, 9, 17, 31, 44], 0: [3, 8, 3]}
PENDING = 7


def captured(runner: LayerParallelRunner | None = None, capture: Capture = repeated) -> Session:
    return Session(GraphExecutor(tiny_decoder(), StaticOps(), capture), runner)


def one_by_one(session: Session, slots: list[int], widths: tuple[int, ...]) -> list[TreeBuilder]:
    """Trees whose levels are fed each by itself."""
    trees = [TreeBuilder(PENDING) for _ in slots]
    frontiers = [[0] for _ in slots]
    levels = session.feed(slots, [[PENDING]] * len(slots))
    for level, width in enumerate(widths):
        if level:
            levels = session.grow(slots, trees, [len(frontier) for frontier in frontiers])
        for b, tree in enumerate(trees):
            tops = levels[b].top(width)[1].tolist()
            pairs = [(n, token) for n, top in zip(frontiers[b], tops, strict=True) for token in top]
            frontiers[b] = [tree.add(node, token, "chosen") for node, token in pairs]
    return trees


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 2, 1), (3, 2)])
@pytest.mark.parametrize("parallel", [False, True])
def test_levels_at_once_are_those_of_one_after_the_other(widths: tuple[int, ...], parallel: bool) -> None:
    """Of two requests in slots out of order, twice: a capture is used again behind a longer prefix."""

    def runner() -> LayerParallelRunner | None:
        return LayerParallelRunner(LayerParallelConfig()) if parallel else None

    made, plain = captured(runner()), Session(TorchExecutor(tiny_decoder(), Ops()), runner())
    for session in (made, plain):
        session.runner.prepare(session.executor.layers)
        session.reserve(3, 64)
        for slot, prompt in PROMPTS.items():
            session.prefill(slot, prompt)
    slots = list(PROMPTS)
    for _ in range(2):
        trees = one_by_one(plain, slots, widths)
        roots = made.feed(slots, [[PENDING]] * 2)
        reads = host_reads.total()
        drafted = made.draft_levels(slots, TreeShape(widths), roots, made.vocabulary)
        assert drafted is not None and host_reads.total() == reads + 1
        for tree, levels in zip(trees, drafted, strict=True):
            assert [token for level in levels for token in level.token_KW.flatten().tolist()] == tree.token[1:]
            for level in levels:
                assert level.logprob_KW is not None and (level.logprob_KW <= 0).all()
        # what was fed may be committed: what follows sees its K and V
        for session in (made, plain):
            session.commit(slots, [[0], [0]])
        assert made.tokens(2) == plain.tokens(2) and made.length(2) == plain.length(2)
        after = [session.feed(slots, [[4], [6]]) for session in (made, plain)]
        for one, other in zip(*after, strict=True):
            torch.testing.assert_close(one.logits_KR, other.logits_KR, atol=1e-4, rtol=1e-4)


PLAIN = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.3))
FILTERED = (SamplingParams(1.0, top_k=12, top_p=0.9), SamplingParams(2.0, min_p=0.05))


@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 1, 1), (3, 2, 1), (1, 2)])
@pytest.mark.parametrize(
    "samplings", [PLAIN, FILTERED, (PLAIN[0], FILTERED[0])], ids=["plain", "filtered", "one filtered"]
)
def test_drawn_trees_have_the_tokens_that_a_sampler_draws(
    samplings: tuple[SamplingParams, ...], widths: tuple[int, ...]
) -> None:
    """With the same random numbers, by a sampling of each request's own, from logits divided by the draft's
    temperature; those of one node without replacement.
    """
    session, slots, tempered, shape = captured(), list(PROMPTS), 0.8, TreeShape(widths, 0.8)
    for slot, prompt in PROMPTS.items():
        session.prefill(slot, prompt)
    roots = session.feed(slots, [[PENDING]] * 2)
    rng = torch.Generator().manual_seed(5)
    seen = set()
    for _ in range(4):
        count = sum(shape.nodes)
        uniforms_2X = torch.rand((2, count), generator=rng, dtype=torch.float64).tolist()
        draws = [[*own, *numbers_of(params)] for own, params in zip(uniforms_2X, samplings, strict=True)]
        drafted = session.draft_levels(slots, shape, roots, session.vocabulary, draws)
        assert drafted is not None
        for levels, uniforms, params in zip(drafted, uniforms_2X, samplings, strict=True):
            sampler = ExactSampler(ExactConfig("torch"), params)
            numbers, nodes = iter(uniforms), 1
            for level, width in zip(levels, widths, strict=True):
                assert level.logits_KR is not None and level.token_KW.shape == (nodes, width)
                for logits_R, tokens in zip(level.logits_KR, level.token_KW.tolist(), strict=True):
                    left_V = sampler.distribution(logits_R / tempered).q_V
                    for token in tokens:
                        assert token == sampler.draw(left_V, next(numbers))
                        left_V = without(left_V, token)
                nodes *= width
            assert next(numbers, None) is None
            seen.add(tuple(token for level in levels for token in level.token_KW.flatten().tolist()))
        # each level's logits are those after the tokens before
        first = TreeBuilder(PENDING)
        for token in drafted[0][0].token_KW.flatten().tolist():
            first.add(0, token, "chosen")
        (fed,) = session.grow(slots[:1], [first], [widths[0]])
        second = drafted[0][1].logits_KR
        assert second is not None
        torch.testing.assert_close(fed.logits_KR, second, atol=1e-4, rtol=1e-4)
    assert len(seen) > 4


def test_what_cannot_be_drawn_is_told() -> None:
    """At a temperature so low that one token has all the mass, or where top-k keeps one, and from logits that are no
    numbers.
    """
    session = captured()
    session.prefill(0, PROMPTS[0])
    roots = session.feed([0], [[PENDING]])
    unusable = [replace(roots[0], logits_KR=torch.full_like(roots[0].logits_KR, torch.nan))]
    for params in (SamplingParams(temperature=1e-30), SamplingParams(temperature=1.0, top_k=1)):
        draws = [[0.5] * 4 + numbers_of(params)]
        drafted = session.draft_levels([0], TreeShape((2, 1), 1.0), roots, session.vocabulary, draws)
        assert drafted is not None
        first, second = drafted[0][0].token_KW[0].tolist()
        assert first == int(roots[0].logits_KR.argmax()) and second == -1
        drafted = session.draft_levels([0], TreeShape((2, 1), 1.0), unusable, session.vocabulary, draws)
        assert drafted is not None and drafted[0][0].token_KW.tolist() == [[-1, -1]]


def test_a_capture_serves_one_shape() -> None:
    """Other draft temperatures are another graph, and filters are; other temperatures, and other filters, are not."""
    session = captured()
    session.prefill(0, PROMPTS[0])
    made = session.executor
    assert isinstance(made, GraphExecutor)
    roots, found = session.feed([0], [[PENDING]]), []
    before = made.captures
    for tempered, params in (
        (1.0, SamplingParams(temperature=1.0)),
        (1.0, SamplingParams(temperature=0.5)),
        (100.0, SamplingParams(temperature=1.0)),
        (100.0, SamplingParams(temperature=1.0, top_k=1)),
        (100.0, SamplingParams(temperature=1.0, top_k=1000, min_p=0.01)),
    ):
        draws = [[0.9, 0.9, *numbers_of(params)]]
        drafted = session.draft_levels([0], TreeShape((1, 1), tempered), roots, session.vocabulary, draws)
        assert drafted is not None
        found.append([int(level.token_KW) for level in drafted[0]])
    assert made.captures == before + 3
    # at 100 nearly even
    assert abs(found[2][0] - 0.9 * session.vocabulary) < 0.1 * session.vocabulary
    assert found[2] != found[0]
    assert found[3][0] == int(roots[0].logits_KR.argmax()) and found[4] == found[2]


def test_where_levels_are_not_one_launch() -> None:
    """Nothing is done, and nothing read: a single level, an executor that captures nothing, a runner that cannot be,
    and levels whose capture fails.
    """

    class Waits(LayerParallelRunner):
        """Not capturable: that is not inherited."""

    def refused(run: Callable[[], PassOutput]) -> NoReturn:
        raise CannotCapture("not today")

    runner = Waits(LayerParallelConfig())
    runner.prepare(tiny_decoder().layers)
    cases = (
        (captured(), (2,)),
        (Session(TorchExecutor(tiny_decoder(), Ops())), (1, 1)),
        (captured(runner), (1, 1)),
        (captured(capture=refused), (1, 1)),
        (captured(), (1, 129)),
        (captured(), (16, 16, 1)),
    )
    for session, widths in cases:
        session.prefill(0, PROMPTS[0])
        roots = session.feed([0], [[PENDING]])
        reads = host_reads.total()
        assert session.draft_levels([0], TreeShape(widths), roots, session.vocabulary) is None
        assert host_reads.total() == reads
