"""Self-tests: sound operations pass, one that is wrong in a single thing does not, and every operation has one."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Backend, SelfTest
from spec_sdk.diagnosis import self_tests
from spec_sdk.diagnosis.op_cases import CASES
from spec_sdk.diagnosis.op_inputs import Inputs
from spec_sdk.diagnosis.self_tests import Outcome, backend_tests, carried_out, of_all, ops_tests, reference_tests
from spec_sdk.errors import UserError
from spec_sdk.ops import (
    RULES,
    Decision,
    DecisionsInPass,
    LogitsToCome,
    Ops,
    PendingDecision,
    Rule,
    ScoredTree,
    UnscoredTree,
)
from spec_sdk.testing.backends import check_rule_in_pass
from spec_sdk.testing.defaults import reference_sampler
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native.library import find
from tests.doctor.wrong_ops import Wrong

CPU = torch.device("cpu")
COMPUTES_NOTHING = {"before_pass", "fast_in_bits", "keys_to_read"}
OF_THEIR_OWN = {"accept", "accept_in_pass", "drawing", "head_block", "least_kept", "path_grower", "whole_pass"}
"""Operations without tensors to compare in every case, tested in :mod:`spec_sdk.diagnosis.self_tests`."""


def outcomes(tests: Any) -> list[Outcome]:
    return [carried_out(test) for test in tests]


def test_every_operation_has_a_case() -> None:
    public = {name for name, _ in inspect.getmembers(Ops, inspect.isfunction) if not name.startswith("_")}
    assert public == set(CASES) | OF_THEIR_OWN | COMPUTES_NOTHING


def test_the_reference_is_sound() -> None:
    found = outcomes(reference_tests())
    assert {outcome.verdict for outcome in found} == {"ok"}, [o for o in found if o.verdict != "ok"]
    assert {outcome.operation for outcome in found} == set(CASES)


@pytest.mark.parametrize("native", ["auto", False])
def test_the_cpu_backend_is_sound(native: Any) -> None:
    found = outcomes(backend_tests(CpuBackend(CpuConfig(native=native))))
    assert {outcome.verdict for outcome in found} == {"ok"}, [o for o in found if o.verdict != "ok"]
    operations = {outcome.operation for outcome in found}
    own = {"cached_attention", "head_block", "path_grower", "quantized_projection", "rms_norm", "top_log_probabilities"}
    own |= {"drawing", "recurrent_mixer", "speculative_attention", *(f"accept: {rule}" for rule in RULES)}
    kernels = native == "auto" and not isinstance(find(), str)
    assert operations == {"projection", "projections", "with_rows", "a whole pass"} | (own if kernels else set())


@pytest.mark.parametrize("what", CASES)
def test_a_wrong_operation_is_found(what: str) -> None:
    """In float32; those that the wrong one is no part of are sound."""
    found = {test.operation: carried_out(test) for test in ops_tests(Wrong(what), CPU, [torch.float32])}
    assert found[what].verdict == "wrong" and "off by" in found[what].words
    builds_on_it = {"partial_attention", "combine", "selected_attention", "sink_attention", "speculative_attention"}
    allowed = {what} | ({"cached_attention"} if what == "tree_attention" else set())
    allowed |= builds_on_it if what in builds_on_it else set()
    assert {name for name, outcome in found.items() if outcome.verdict == "wrong"} <= allowed


class OfOps(CpuBackend):
    """The CPU backend with other operations."""

    def __init__(self, ops: Ops) -> None:
        super().__init__(CpuConfig(native=False))
        self.given = ops

    @property
    def ops(self) -> Ops:
        return self.given


class LastToken(Ops):
    """Rules of acceptance whose next token is one too high, where the path has two nodes."""

    def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
        return [replace(one, decide=functools.partial(_off, one.decide)) for one in super().accept(rule, scored)]


def _off(decide: Callable[[Sequence[torch.Tensor]], Decision], host: Sequence[torch.Tensor]) -> Decision:
    path, token = decide(host)
    return path, token + (len(path) == 2)


def test_a_wrong_rule_of_acceptance_is_found() -> None:
    found = [o for o in outcomes(backend_tests(OfOps(LastToken()))) if o.operation.startswith("accept")]
    assert len(found) > 3 and any(outcome.verdict == "wrong" for outcome in found)
    assert any("it accepts the nodes" in outcome.words for outcome in found)


class LastTokenInPass(Ops):
    """The same of rules that passes decide by."""

    def accept_in_pass(
        self, rule: str | Rule, unscored: Sequence[UnscoredTree], logits: LogitsToCome
    ) -> DecisionsInPass | None:
        inside = super().accept_in_pass(rule, unscored, logits)
        return inside and DecisionsInPass(inside.epilogue, functools.partial(_off_in_pass, inside.decision))


def _off_in_pass(decision: Callable[[int, torch.Tensor], Decision], b: int, made_X: torch.Tensor) -> Decision:
    path, token = decision(b, made_X)
    return path, token + (len(path) == 2)


def test_a_wrong_rule_in_a_pass_is_found() -> None:
    found = {o.operation: o for o in outcomes(backend_tests(OfOps(LastTokenInPass())))}
    greedy, sampled = found["accept in a pass: greedy"], found["accept in a pass: multi_step"]
    assert greedy.verdict == "wrong" and "it accepts the nodes" in greedy.words
    assert (sampled.verdict, sampled.words) == ("not available", "decided after the pass")
    assert check_rule_in_pass(OfOps(Ops()), "greedy", reference_sampler)


class KeepsAllEquals(Ops):
    """At a filter's border."""

    def least_kept(self, logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        least_R, last_R = super().least_kept(logits_RV, shaping_B4)
        return least_R, torch.full_like(last_R, logits_RV.shape[1])


def test_wrong_filters_are_found() -> None:
    (found,) = (o for o in outcomes(backend_tests(OfOps(KeepsAllEquals()))) if o.operation == "least_kept")
    assert found.verdict == "wrong" and "the reference sampler" in found.words


def test_a_wrong_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass through whole blocks goes by none of the operations: it has a test of its own."""
    if isinstance(find(), str):
        pytest.skip(f"nothing can be compiled here: {find()}")
    from spec_sdk_backends.native import decoder, head_block

    run = decoder.run_blocks

    def off(*arguments: Any, **more: Any) -> None:
        run(*arguments, **more)
        arguments[7][..., 3] *= 1.01

    monkeypatch.setattr(decoder, "run_blocks", off)
    monkeypatch.setattr(head_block, "run_blocks", off)
    wrong = [o for o in outcomes(backend_tests(CpuBackend(CpuConfig()))) if o.verdict == "wrong"]
    assert {o.operation for o in wrong if o.numbers == "float32"} == {"a whole pass", "head_block"}


def test_a_wrong_pass_in_one_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(find(), str):
        pytest.skip(f"nothing can be compiled here: {find()}")
    from spec_sdk_backends.native.whole_pass import NativeWholePass, Passed

    call = NativeWholePass.__call__

    def off(self: NativeWholePass, *arguments: Any) -> Passed | None:
        made = call(self, *arguments)
        if made is not None:
            made[2][..., 3] *= 1.01
        return made

    monkeypatch.setattr(NativeWholePass, "__call__", off)
    wrong = [o for o in outcomes(backend_tests(CpuBackend(CpuConfig()))) if o.verdict == "wrong"]
    assert {o.operation for o in wrong if o.numbers == "float32"} == {"a whole pass"}
    assert all("off by" in o.words for o in wrong)


def test_a_wrong_tree_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(find(), str):
        pytest.skip(f"nothing can be compiled here: {find()}")
    from spec_sdk_backends.native.growing import NativePathGrower

    grow = NativePathGrower.__call__

    def off(self: NativePathGrower, *arguments: Any) -> Any:
        grown = grow(self, *arguments)
        assert grown is not None
        grown.levels[-1].logits.logits_KR[-1, 3] *= 1.3
        return grown

    monkeypatch.setattr(NativePathGrower, "__call__", off)
    wrong = [o for o in outcomes(backend_tests(CpuBackend(CpuConfig()))) if o.verdict == "wrong"]
    assert {o.operation for o in wrong if o.numbers == "float32"} == {"path_grower"}


def outcome_of(run: Callable[[], float]) -> Outcome:
    return carried_out(SelfTest("norm", "float32", 1e-4, run))


def raising(error: Exception) -> Callable[[], float]:
    def run() -> float:
        raise error

    return run


def test_what_may_come_of_a_test() -> None:
    assert outcome_of(lambda: 1e-5) == Outcome("norm", "float32", "ok", 1e-5)
    assert outcome_of(lambda: 2e-4).verdict == "wrong" and outcome_of(lambda: 2e-4).error == 2e-4
    # JSON has no number for it
    assert outcome_of(lambda: math.nan).verdict == "wrong" and outcome_of(lambda: math.nan).error is None
    refused = outcome_of(raising(UserError("no float16 here")))
    assert (refused.verdict, refused.words) == ("not available", "no float16 here")
    crashed = outcome_of(raising(RuntimeError("illegal\ninstruction")))
    assert (crashed.verdict, crashed.words) == ("wrong", "RuntimeError: illegal instruction")


def test_nan_is_not_lost_among_others() -> None:
    assert math.isnan(of_all([math.nan, 0.1])) and math.isnan(of_all([0.1, math.nan])) and of_all([0.1, 0.2]) == 0.2


def test_inputs_are_the_same_on_both_sides() -> None:
    ours, theirs = Inputs(CPU, torch.bfloat16, torch.bfloat16), Inputs(CPU, torch.bfloat16, torch.float64)
    assert torch.equal(ours.numbers(3, 5).double(), theirs.numbers(3, 5))
    assert torch.equal(ours.gain(7).double(), theirs.gain(7))


def test_a_backend_may_bring_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Backend = CpuBackend(CpuConfig(native=False))
    monkeypatch.setattr(made, "self_tests", lambda: [SelfTest("matmul on tiles", "bfloat8", 0.1, lambda: 0.5)])
    last = outcomes(backend_tests(made))[-1]
    assert (last.operation, last.numbers, last.verdict) == ("matmul on tiles", "bfloat8", "wrong")
    assert self_tests.is_own(made, "projection") and not self_tests.is_own(made, "rms_norm")
