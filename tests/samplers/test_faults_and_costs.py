"""Unusable logits are named, scales are warned about, and no N x V tensor of probabilities is made."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spec_sdk.contracts import Budget, SamplingParams
from spec_sdk.engine.scheduler import Scheduler
from spec_sdk.errors import UnusableLogits, UserError
from spec_sdk.model.session import Scores
from spec_sdk.testing import TableDrafter, TableModel
from spec_sdk.testing.defaults import request_for
from spec_sdk.testing.statistics import DeepestPolicy
from spec_sdk.testing.tables import PlannedDraw
from spec_sdk.tree import DraftDistribution, Draw, TokenTree, TreeBuilder
from spec_sdk_samplers.exact import ExactConfig, ExactSampler
from spec_sdk_samplers.reference import ReferenceSampler
from spec_sdk_samplers.sigmoid import SigmoidConfig, SigmoidSampler, scale_warnings
from spec_sdk_verifiers.multi_step import MultiStep
from tests.samplers.random_cases import accepted, make_case
from tests.samplers.random_trees import make_tree_case
from tests.support.configured import config_of

SAMPLED = SamplingParams(temperature=1.0)
NAN, INF = float("nan"), float("inf")


class BreaksDown(TableModel):
    """A target whose logits are unusable from its third pass on."""

    passes = 0
    bad = NAN

    def score(self, slots: Any, trees: Any, taps: Any = (), epilogue: Any = None) -> list[Scores]:
        self.passes += 1
        scores = super().score(slots, trees, taps)
        if self.passes == 3:
            scores[0].logits_NV[0] = self.bad
        return scores


@pytest.mark.parametrize("params", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
@pytest.mark.parametrize("sampler", ["reference", "exact", "kernels", "sigmoid"])
@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_unusable_logits_name_the_step_and_the_row(sampler: str, bad: float, params: SamplingParams) -> None:
    if sampler == "kernels":
        pytest.importorskip("triton")
    made = {
        "reference": ReferenceSampler(None, params),
        "exact": ExactSampler(None, params),
        "kernels": ExactSampler(ExactConfig("triton"), params),
        "sigmoid": SigmoidSampler(None, params),
    }[sampler]
    target, draft = BreaksDown(6, 1), TableModel(6, 2)
    target.bad = bad
    drafter = TableDrafter([draft], [[PlannedDraw("with_replacement")]] * 2)
    scheduler = Scheduler(target, drafter, MultiStep(None), DeepestPolicy(None))
    with pytest.raises(UserError, match=r"^step 3, target: row 0 of the logits is NaN, infinite, or -inf for every"):
        for _ in scheduler.run(request_for([1], made, 0)):
            pass


def test_unusable_draft_logits_name_the_step_and_the_drafter() -> None:
    class Broken(TableDrafter):
        def propose_one(self, request: Any, budget: Budget) -> TokenTree:
            distribution = request.sampler.distribution(torch.full((6,), NAN))
            tree = TreeBuilder(request.pending_token)
            tree.add(0, request.sampler.draw_from(distribution, request.rng), "with_replacement", distribution)
            return tree.build().tree

    scheduler = Scheduler(TableModel(6, 1), Broken([], []), MultiStep(None), DeepestPolicy(None))
    with pytest.raises(UserError, match="^step 1, drafter 'table': row 0 of the logits is NaN"):
        next(scheduler.run(request_for([1], ExactSampler(None, SAMPLED), 0)))


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_a_row_that_no_decision_needs_may_be_unusable(kernels: str) -> None:
    """The chain is rejected at once; the last row is garbage that nobody looks at, or the kernels do without effect."""
    if kernels == "triton":
        pytest.importorskip("triton")
    sampler = ExactSampler(ExactConfig(kernels), SAMPLED)
    logits_NV = torch.tensor([[0.0, 0.0, 90.0], [NAN, NAN, NAN]])
    tree = TreeBuilder(0)
    tree.add(0, 1, "with_replacement", sampler.distribution(torch.tensor([0.0, 5.0, 0.0])))
    uniforms = [0.9, 0.5]
    assert accepted(sampler, tree.build().tree, logits_NV, uniforms) == ([0], 2)
    with pytest.raises(UnusableLogits, match="row 1"):
        tree = TreeBuilder(0)
        tree.add(0, 2, "chosen")
        accepted(sampler, tree.build().tree, logits_NV, uniforms)


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_unusable_distributions_and_impossible_draws_are_named(kernels: str) -> None:
    if kernels == "triton":
        pytest.importorskip("triton")
    sampler = ExactSampler(ExactConfig(kernels), SAMPLED)
    logits_NV, uniforms = torch.zeros(3, 4), [0.9, 0.9, 0.5]
    tree = TreeBuilder(0)
    tree.add(0, 1, "chosen")
    tree.add(0, 2, "with_replacement", sampler.distribution(torch.full((4,), NAN)))
    with pytest.raises(UnusableLogits, match="^draft, row 0"):
        accepted(sampler, tree.build().tree, logits_NV, uniforms)
    tree = TreeBuilder(0)
    tree.add(tree.add(0, 1, "chosen"), 2, "with_replacement", sampler.distribution(torch.full((4,), NAN)))
    with pytest.raises(UnusableLogits, match="^draft, row 1"):
        accepted(sampler, tree.build().tree, logits_NV + torch.tensor([0.0, 9.0, 0.0, 0.0]), uniforms)
    for distribution in (sampler.distribution(torch.tensor([0.0, 0.0, -INF, 0.0])), torch.tensor([0.5, 0.5, 0.0, 0.0])):
        tree = TreeBuilder(0)
        tree.add(0, 1, "chosen")
        tree.add(0, 2, "with_replacement", distribution, drafter="tables")
        with pytest.raises(ValueError, match=r"^tree node 2: drafter 'tables' says that it drew token 2 from a"):
            accepted(sampler, tree.build().tree, logits_NV, uniforms)
    # by a builder, which refuses the second draw, nobody gets such a tree
    twice = (Draw(1, "without_replacement", torch.tensor([0.1, 0.0, 0.0, 0.9]), "tables", 0),) * 2
    with pytest.raises(ValueError, match="^tree node 1: drafter 'tables' says that it drew token 3 from a"):
        accepted(sampler, TokenTree((0, 3), (-1, 0), (0, 1), (2, 2), (twice, ())), logits_NV, uniforms)


@pytest.mark.parametrize("at", [2, 3])
def test_the_sigmoid_draws_from_no_distribution_that_nan_has_spoilt(at: int) -> None:
    """At the drawn token, or at another one, which a rejection makes it read."""
    sampler, distribution_V = (
        SigmoidSampler(SigmoidConfig("torch", -10.0, 10.0), SAMPLED),
        torch.tensor([0.0, 0.0, 9.0, 0.0]),
    )
    distribution_V[at] = NAN
    tree = TreeBuilder(0)
    tree.add(0, 2, "with_replacement", sampler.distribution(distribution_V))
    with pytest.raises(UnusableLogits, match="^draft, row 0"):
        accepted(sampler, tree.build().tree, torch.zeros(2, 4), [0.99, 0.5])


def test_distributions_may_lie_anywhere_in_memory() -> None:
    """The kernels count their rows from one of them; the last distribution here lies before the first."""
    pytest.importorskip("triton")
    case = make_case(4, 1 << 14, largest=1000)
    rows_GV = case.draft_BGV[0]
    answers = []
    for kernels in ("torch", "triton"):
        sampler, tree, node = ExactSampler(ExactConfig(kernels), SAMPLED), TreeBuilder(0), 0
        for token, row_V in zip(case.token_BG[0], reversed(list(rows_GV)), strict=True):
            tree.add(node, token, "with_replacement", sampler.distribution(row_V))
            node = tree.add(node, (token + 1) % 32, "with_replacement", sampler.distribution(row_V))
        uniforms = torch.linspace(0.1, 0.9, 2 * rows_GV.shape[0] + 1, dtype=torch.float64).tolist()
        answers.append(accepted(sampler, tree.build().tree, torch.zeros(tree.size, rows_GV.shape[1]), uniforms))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("seed", "filtered"), [(32, False), (53, True)])
def test_the_host_reads_a_tree_s_verdict_and_nothing_else(
    seed: int, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to read a tensor's values is counted: ``tolist``, and the scalars of ``item``, ``float``, ``bool``."""
    pytest.importorskip("triton")
    reads: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
                reads.append(str(func))
            return func(*args, **(kwargs or {}))

    case = make_tree_case(seed, 1 << 13, largest=257)
    assert case.params.filtered == filtered
    expected = case.answer(0, ReferenceSampler(None, case.params))
    sampler = ExactSampler(ExactConfig("triton"), case.params)
    tree = case.tree(0, case.distributions(0, sampler))
    uniforms, right = case.uniform_BD[0].tolist(), torch.Tensor.tolist

    def counted(self: torch.Tensor) -> Any:
        reads.append(f"tolist {self.numel()}")
        return right(self)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    copy = torch.Tensor.cpu

    def copied(self: torch.Tensor) -> torch.Tensor:
        reads.append(f"cpu {self.numel()}")
        return copy(self)

    monkeypatch.setattr(torch.Tensor, "cpu", copied)
    with Watch():
        decided = accepted(sampler, tree, case.target_BNV[0], uniforms)
    assert reads == ["cpu 3", "tolist 3"], "three integers of eight bytes, copied once"
    assert [*(tree.token_N[node] for node in decided[0][1:]), decided[1]] == expected


def test_one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """``exact`` never normalises a row that its verdict does not need, nor a draft's whose token is accepted."""
    rows: list[int] = []
    right = ExactSampler.row_distribution

    def counted(self: ExactSampler, logits_V: torch.Tensor, row: int, use: str) -> torch.Tensor:
        assert logits_V.dim() == 1 and use == "p"
        rows.append(row)
        return right(self, logits_V, row, use)

    case = make_case(4, 1 << 14, largest=1000)
    sampler = ExactSampler(None, SAMPLED)
    tree, node = TreeBuilder(0), 0
    logits_GV = case.target_BRV[0, :-1].float()
    for row_V in logits_GV:
        distribution = sampler.distribution(row_V)
        node = tree.add(node, sampler.draw_from(distribution, 0.5), "with_replacement", distribution)
    monkeypatch.setattr(ExactSampler, "row_distribution", counted)
    monkeypatch.setattr(ReferenceSampler, "probabilities", lambda *_: pytest.fail("an N x V tensor"))
    gamma = logits_GV.shape[0]
    request = request_for([0], sampler, 0).view
    verdict = MultiStep(None).verify_one(tree.build().tree, case.target_BRV[0].float(), request)
    assert len(verdict.path) == gamma + 1, "p = q: everything is accepted"
    assert rows == list(range(gamma + 1))


def test_a_distribution_is_worked_out_when_it_is_read() -> None:
    made: list[int] = []
    distribution = DraftDistribution(torch.zeros(4), lambda row_V: made.append(1) or row_V.softmax(-1))  # type: ignore[func-returns-value]
    tree = TreeBuilder(0)
    tree.add(0, 3, "with_replacement", distribution)
    draw = tree.build().tree.draws_N[0][0]
    assert draw.source is distribution and not made
    assert draw.q_V is draw.q_V and made == [1]


def test_options_out_of_range() -> None:
    with pytest.raises(UserError, match="^sampler.kernels: unknown value 'tritn', did you mean 'triton'"):
        config_of("sampler", "exact", kernels="tritn")
    with pytest.raises(UserError, match="^sampler.alpha: 3.0 must be below 0 and finite"):
        config_of("sampler", "sigmoid", alpha=3, beta=5)
    with pytest.raises(UserError, match="^sampler.beta: inf must be above 0 and finite"):
        config_of("sampler", "sigmoid", beta=float("inf"))


def test_kernels_without_triton_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else real(name))
    with pytest.raises(UserError, match=r"^sampler.kernels: triton is not installed: pip install 'spec-sdk\[cuda\]'"):
        ExactSampler(ExactConfig("triton"), SAMPLED)


def test_scales_are_warned_about() -> None:
    assert scale_warnings(-1e4, 1e4) == [] and scale_warnings(-1e3, 1e3, torch.bfloat16) == []
    assert "saturate" in scale_warnings(-10, 10)[0]
    assert "float16" in scale_warnings(-1e5, 1e5, torch.float16)[0]
    assert any("float32" in warning for warning in scale_warnings(-1e7, 1e7))
