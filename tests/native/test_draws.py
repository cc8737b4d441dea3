"""What the samplers draw of draft logits by the kernels is what they draw in torch, by the same random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_sdk.contracts import DraftLogits, Sampler, SamplingParams
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.errors import UnusableLogits
from spec_sdk.ops.vocabulary_row import SomeLogits
from spec_sdk.testing import check_sampler
from spec_sdk.testing.defaults import request_for
from spec_sdk.tree import DraftDistribution, TreeBuilder
from spec_sdk_backends.cpu import CpuOps
from spec_sdk_backends.native.mass import Mass
from spec_sdk_backends.native.ops import NativeOps
from spec_sdk_growth.static import grow_static
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidConfig, SigmoidSampler
from spec_sdk_verifiers.block_verification import BlockVerification
from tests.native.test_mass import SAMPLINGS, row
from tests.support.real_pipelines import bench_prompts, pipeline_of

NATIVE = NativeOps(CpuOps())


def native(params: SamplingParams) -> ExactSampler:
    sampler = ExactSampler(None, params)
    sampler.backend_ops = NATIVE
    return sampler


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each row that the kernels made."""
    sizes: list[int] = []
    of_logits = Mass.of_logits

    def counted(self: Mass, *arguments: object) -> float:
        sizes.append(self.vocabulary)
        return of_logits(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Mass, "of_logits", counted)
    return sizes


def rows() -> list[torch.Tensor | SomeLogits]:
    token_R = torch.randperm(900, generator=rng(1))[:200]
    few_V = torch.full((500,), -torch.inf)
    few_V[[7, 300, 12]] = torch.tensor([1.0, 2.0, -60.0])
    return [
        row(700, 3.0),
        row(5000, 1.0, torch.bfloat16),
        SomeLogits(row(200, 2.0), token_R, 900),
        SomeLogits(row(200, 2.0), None, 900),
        few_V,
    ]


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_the_tokens_of_the_reference(params: SamplingParams, made: list[int]) -> None:
    """One after the other, and different ones as long as there are any; and as many random numbers are taken."""
    different = 0
    for number, logits in enumerate(rows()):
        one, other = native(params), ReferenceSampler(None, params)
        ours, theirs = one.distribution(logits), other.distribution(logits)
        mine, yours = rng(number), rng(number)
        for count in (1, 4):
            drawn = [[s.draw_from(d, r) for _ in range(30)] for s, d, r in ((one, ours, mine), (other, theirs, yours))]
            assert drawn[0] == drawn[1]
            drawn = [s.draw_different(d, count, r) for s, d, r in ((one, ours, mine), (other, theirs, yours))]
            assert drawn[0] == drawn[1] and len(set(drawn[0])) == len(drawn[0]) <= count
            different += len(drawn[0])
        assert torch.equal(mine.get_state(), yours.get_state())
        assert ours.made is None
        for token, probability in ours.known.items():
            assert probability == pytest.approx(float(theirs.q_V[token]), rel=1e-4)
        drawn = [native(params).draw_different(ours, 1000, mine), other.draw_different(theirs, 1000, yours)]
        if params == SAMPLINGS[0] and number == 4:
            assert drawn[0] == drawn[1] and set(drawn[0]) == {7, 300, 12}
    assert made and different > 5


def test_a_native_sampler_conforms(made: list[int]) -> None:
    def make(params: SamplingParams) -> Sampler:
        return native(params)

    check_sampler(make)
    assert made


def test_who_does_not_draw_by_kernels(made: list[int]) -> None:
    class Own(ExactSampler):
        def row_distribution(self, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
            return super().row_distribution(logits_V.flip(0), row, use)

    params, logits_V = SamplingParams(temperature=1.0), torch.tensor([9.0, 0.0, 0.0])
    for sampler in (
        Own(None, params),
        ExactSampler(ExactConfig("torch"), params),
        ExactSampler(None, SamplingParams()),
        ExactSampler(None, params),
    ):
        sampler.backend_ops = NATIVE
        distribution = sampler.distribution(logits_V)
        if type(sampler) is ExactSampler and not sampler.greedy and sampler.ops is None:
            assert float(distribution.q_V.sum()) == pytest.approx(1)
        assert sampler.draw_from(distribution, 0.5) == (2 if isinstance(sampler, Own) else 0)
        assert sampler.draw_different(distribution, 1, rng(0)) == [0]
    assert not made
    sigmoid = SigmoidSampler(SigmoidConfig(), params)
    sigmoid.backend_ops = NATIVE
    assert sigmoid.draw_from(sigmoid.distribution(logits_V), 0.5) == 0 and made


def test_a_rule_in_torch_takes_the_probability_that_a_token_was_drawn_with() -> None:
    """On the border of top-p the kernels may keep a token that torch does not: it was drawn, and so is possible."""
    params, met = SamplingParams(temperature=1.0, top_p=0.9), 0
    for seed in range(400):
        logits_V = 2 * torch.randn(2000, generator=rng(seed))
        sorted_V = logits_V.double().softmax(-1).sort(descending=True).values.cumsum(0)
        params = SamplingParams(temperature=1.0, top_p=float(sorted_V[50 + seed % 50]))
        sampler = native(params)
        distribution = sampler.distribution(logits_V)
        kept = ReferenceSampler(None, params).probabilities(logits_V[None])[0] > 0
        drawing = NATIVE.drawing(logits_V, params)
        assert drawing is not None
        border = [token for token in range(2000) if drawing.probability(token) > 0 and not kept[token]]
        if not border:
            continue
        met += 1
        distribution.known[border[0]] = drawing.probability(border[0])
        builder = TreeBuilder(0)
        builder.add(0, border[0], "with_replacement", distribution)
        tree, target_NV = builder.build().tree, torch.randn(2, 2000, generator=rng(seed))
        request = request_for([0], sampler, 0).view
        assert BlockVerification(None).verify_one(tree, target_NV, request).tokens
    assert met


def test_a_sampler_with_distributions_of_its_own_gets_logits_of_all_tokens() -> None:
    given: list[object] = []

    class Own(ReferenceSampler):
        def distribution(self, logits: Any) -> DraftDistribution:
            given.append(logits)
            return super().distribution(logits * 1.0)

    request = request_for([0], Own(None, SAMPLINGS[0]), 0).view
    logits = DraftLogits(torch.zeros(1, 4), torch.arange(4), 9)
    tree = TreeBuilder(0)
    growing = grow_static(tree, logits, 1, [2], "with_replacement", 1.0, request, "tests")
    with pytest.raises(StopIteration):
        next(growing)
    assert isinstance(given[0], torch.Tensor) and given[0].shape == (9,)


def test_unusable_logits() -> None:
    sampler = native(SAMPLINGS[0])
    for bad_V in (torch.tensor([0.0, torch.nan]), torch.full((3,), -torch.inf)):
        for draw in (sampler.draw_from, lambda distribution, random: sampler.draw_different(distribution, 2, random)):
            with pytest.raises(UnusableLogits) as raised:
                draw(sampler.distribution(bad_V), rng(0))
            assert raised.value.row == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ("pipeline=sd_chain",),
        ("pipeline=sd_chain", "drafter.width=3", "sampling.top_p=0.9"),
        ("pipeline=eagle_tree", "policy=fixed", "drafter.growth=static", "drafter.widths=[3,2]"),
    ],
    ids=" ".join,
)
def test_what_a_request_draws_does_not_depend_on_those_beside_it(overrides: tuple[str, ...], made: list[int]) -> None:
    """Alone a chain is drawn in one native call, with others level by level."""
    pipeline = pipeline_of("sampling.temperature=1", "deterministic=true", *overrides)
    prompts = bench_prompts(pipeline, 3, longest=400)

    def answers(slots: int) -> list[list[int]]:
        engine, tokens = pipeline.new_engine(slots), dict[int, list[int]]()
        for number, prompt in enumerate(prompts):
            engine.add(TokenRequest(prompt, 16, request_id=number, ignore_eos=True))
        while engine.busy:
            for progress in engine.step():
                tokens.setdefault(progress.request, []).extend(progress.tokens)
        return [tokens[number] for number in range(len(prompts))]

    assert answers(1) == answers(3) and made
