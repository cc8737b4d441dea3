"""Does every operation of a backend compute what the reference computes?"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spec_sdk.contracts import Backend, SelfTest
from spec_sdk.diagnosis.head_case import grown_logits, head_logits
from spec_sdk.diagnosis.in_double import InDouble
from spec_sdk.diagnosis.op_cases import CASES
from spec_sdk.diagnosis.op_inputs import Computes, Inputs
from spec_sdk.errors import UserError, in_a_line, message_of
from spec_sdk.model.decoder import Decoder, ForwardPass
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.runners.sequential import SequentialRunner
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import RULES, Ops
from spec_sdk.testing.backends import check_rule, check_rule_in_pass
from spec_sdk.testing.defaults import reference_sampler
from spec_sdk.testing.drawing import check_drawing
from spec_sdk.testing.executors import check_batches, check_closed_trees, random_tree, tree_rows
from spec_sdk.testing.kept_tokens import check_kept_tokens
from spec_sdk.testing.random_weights import TINY, RandomWeights
from spec_sdk.testing.side_by_side import SideBySide

CPU = torch.device("cpu")
LIMITS = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 3e-3}
"""What an operation on numbers of this kind may be off by: sums in another order, and results that are rounded.

In float32 a product of tf32 in place of float32, the mistake that is hardest to see, is off by ten times as much.
"""
PASS_LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""The same of the logits of a whole pass, which rounds again in every layer."""

Verdict = Literal["ok", "wrong", "not available"]


@dataclass(frozen=True)
class Outcome:
    """What came of a self-test. ``error``: the largest one, as a part of the largest value expected; None where the
    operation gave nothing to compare. ``words``: what is wrong, or why it is not available.
    """

    operation: str
    numbers: str
    verdict: Verdict
    error: float | None
    words: str = ""


def carried_out(test: SelfTest) -> Outcome:
    """Whatever an operation raises is its fault, unless it is a UserError: then it is not offered here."""
    try:
        error = test.run()
    except UserError as refusal:
        return Outcome(test.operation, test.numbers, "not available", None, message_of(refusal))
    except AssertionError as fault:
        return Outcome(test.operation, test.numbers, "wrong", None, message_of(fault))
    except Exception as fault:  # a kernel under test may raise anything
        return Outcome(test.operation, test.numbers, "wrong", None, in_a_line(fault))
    # a comparison with NaN is false
    if not error <= test.limit:
        words = f"off by {error:.1e} of the largest value, where rounding explains {test.limit:.0e}"
        return Outcome(test.operation, test.numbers, "wrong", error if math.isfinite(error) else None, words)
    return Outcome(test.operation, test.numbers, "ok", error)


def reference_tests() -> Iterator[SelfTest]:
    """Of the reference in this machine's torch, beside the same in float64."""
    yield from ops_tests(Ops(), CPU, (torch.float32, torch.bfloat16))


def backend_tests(backend: Backend) -> Iterator[SelfTest]:
    """Of a backend's own operations, of whole passes of what it loads, and what it brings itself."""
    ops, own = backend.ops, [name for name in CASES if is_own(backend, name)]
    dtypes = (torch.float32, torch.bfloat16, *((torch.float16,) if backend.device.type == "cuda" else ()))
    yield from ops_tests(ops, backend.device, dtypes, own)
    if is_own(backend, "accept"):
        yield from (
            SelfTest(f"accept: {rule}", "choices", 0.0, functools.partial(_rule, backend, rule)) for rule in RULES
        )
    if is_own(backend, "least_kept"):
        yield SelfTest("least_kept", "choices", 0.0, functools.partial(_keeps, backend))
    if overrides(ops, "drawing"):
        yield SelfTest("drawing", "choices", 0.0, functools.partial(_draws, backend))
    if is_own(backend, "accept_in_pass"):
        for rule in RULES:
            run = functools.partial(_rule_in_pass, backend, rule)
            yield SelfTest(f"accept in a pass: {rule}", "choices", 0.0, run)
    if overrides(ops, "head_block"):
        for dtype in dtypes:
            yield SelfTest("head_block", _name(dtype), PASS_LIMITS[dtype], functools.partial(_head, backend, dtype))
    if overrides(ops, "path_grower"):
        for dtype in dtypes:
            yield SelfTest("path_grower", _name(dtype), PASS_LIMITS[dtype], functools.partial(_grown, backend, dtype))
    for dtype in dtypes:
        yield SelfTest("a whole pass", _name(dtype), PASS_LIMITS[dtype], functools.partial(_pass, backend, dtype))
    yield from backend.self_tests()


def is_own(backend: Backend, operation: str) -> bool:
    """Whether a backend computes an operation in another way than the reference on the CPU, which has its own test."""
    return overrides(backend.ops, operation) or backend.device.type != "cpu"


def overrides(ops: Ops, operation: str) -> bool:
    """Whether an operation is another than that of the reference."""
    return getattr(type(ops), operation) is not getattr(Ops, operation) or operation in vars(ops)


def ops_tests(
    ops: Ops, device: torch.device, dtypes: Sequence[torch.dtype], operations: Sequence[str] = tuple(CASES)
) -> Iterator[SelfTest]:
    """One for every operation and kind of numbers."""
    for operation in operations:
        for dtype in dtypes:
            run = functools.partial(_compared, CASES[operation], ops, device, dtype)
            yield SelfTest(operation, _name(dtype), LIMITS[dtype], run)


def _compared(case: Computes, ops: Ops, device: torch.device, dtype: torch.dtype) -> float:
    found = case(ops, Inputs(device, dtype, dtype))
    expected = case(InDouble(ops.rounds_rows), Inputs(CPU, dtype, torch.float64))
    assert len(found) == len(expected), f"{len(found)} tensors, {len(expected)} were expected"
    return of_all(map(largest_error, found, expected))


def of_all(errors: Iterable[float]) -> float:
    """The largest; NaN if there is one among them."""
    return float(torch.tensor(list(errors), dtype=torch.float64).max())


def largest_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest expected magnitude; NaN where there is one that is not expected."""
    assert found.shape == expected.shape, f"a tensor {list(found.shape)}, expected {list(expected.shape)}"
    expected = expected.double()
    return float((found.double().cpu() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def _rule(backend: Backend, rule: str) -> float:
    check_rule(backend, rule, reference_sampler)
    return 0.0


def _keeps(backend: Backend) -> float:
    check_kept_tokens(backend)
    return 0.0


def _draws(backend: Backend) -> float:
    if not check_drawing(backend):
        raise UserError("samplers draw in torch")
    return 0.0


def _rule_in_pass(backend: Backend, rule: str) -> float:
    if not check_rule_in_pass(backend, rule, reference_sampler):
        raise UserError("decided after the pass")
    return 0.0


def _head(backend: Backend, dtype: torch.dtype) -> float:
    found = head_logits(backend.ops, backend.device, dtype, dtype)
    if found is None:
        raise UserError("the stages of the block run one by one")
    expected = head_logits(InDouble(), CPU, dtype, torch.float64, only_own=False)
    assert expected is not None
    return of_all(map(largest_error, found, expected))


def _grown(backend: Backend, dtype: torch.dtype) -> float:
    both = grown_logits(backend.ops, backend.device, dtype, InDouble())
    if both is None:
        raise UserError("trees are fed level by level")
    return of_all(map(largest_error, *both))


def _pass(backend: Backend, dtype: torch.dtype) -> float:
    """Batches of chains, of closed and of growing trees, with commits between them, by random weights; on a simulator
    a prompt and a tree.
    """
    source = RandomWeights(TINY, 0, dtype)
    reference = TorchExecutor(load_decoder(source, CPU, torch.float32), Ops())
    executor, largest = backend.load(source, dtype), 0.0
    runners = (SequentialRunner, _InStages) if overrides(backend.ops, "whole_pass") else (SequentialRunner,)
    for runner, check in itertools.product(
        runners, (_prompt_and_tree,) if backend.simulates else (check_batches, check_closed_trees)
    ):
        limit, rng = PASS_LIMITS[dtype], random.Random(0)
        side = SideBySide(executor, reference, runner, limit, rng, "random weights")
        check(side)
        largest = max(largest, side.largest_error)
    return largest


class _InStages(SequentialRunner):
    """Of whom no kernel knows that it runs blocks one after the other."""

    def run(self, decoder: Decoder, h_BNM: torch.Tensor, work: ForwardPass) -> torch.Tensor:
        return super().run(decoder, h_BNM, work)


def _prompt_and_tree(side: SideBySide) -> None:
    side.feed([0], [6])
    side.run("tree", [tree_rows(side, 0, random_tree(side.rng, 8, side.vocabulary))])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
