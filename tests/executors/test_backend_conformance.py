"""check_backend: what it finds beside a wrong executor (test_conformance.py has those)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from spec_sdk.contracts import Backend, Finding, SelfTest
from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.executor import Cache, Executor, PassOutput, PassPlan
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops, PendingDecision, Rule, ScoredTree
from spec_sdk.ops.pass_inputs import PassInputs
from spec_sdk.testing.backends import backend_checks
from spec_sdk_backends.cpu import CpuBackend, CpuConfig


def test_the_cpu_backend_says_what_it_is_and_accepts_as_the_reference() -> None:
    backend = CpuBackend(CpuConfig())
    says, _, accepts, finds, bits = backend_checks(backend)
    assert says.run() == CpuBackend(CpuConfig()).describe()
    accepts.run()
    assert str(finds.run()).endswith("findings, 0 self-tests")
    told = str(bits.run())
    assert told.endswith("trees, float32, bfloat16") or "native kernels" in told
    assert not backend.deterministic


class Plain(Backend):
    name = "plain"

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> str:
        return "some machine"


class InTwoLines(Plain):
    def describe(self) -> str:
        return "some\nmachine"


class AnotherEveryTime(Plain):
    asked = 0

    @property
    def hardware(self) -> str:
        self.asked += 1
        return f"machine {self.asked}"


class NoDevice(Plain):
    @property
    def device(self) -> Any:
        return "cpu"


class FirstTree(Plain):
    """Its operations take every tree for the first one."""

    @property
    def ops(self) -> Ops:
        class Wrong(Ops):
            def accept(self, rule: str | Rule, scored: Sequence[ScoredTree]) -> list[PendingDecision]:
                return super().accept(rule, [scored[0]] * len(scored))

        return Wrong()


class WrongInHalfPrecision(Plain):
    """Sound in float32; in bfloat16 its logits are those of other tokens."""

    @property
    def tolerances(self) -> Mapping[torch.dtype, float]:
        return {torch.float32: 1e-4, torch.bfloat16: 0.1}

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        whole = super().load(checkpoint, dtype)
        if dtype == torch.float32:
            return whole

        class Flipped(TorchExecutor):
            def forward(self, inputs: PassInputs, cache: Cache, plan: PassPlan) -> PassOutput:
                output = super().forward(inputs, cache, plan)
                logits = output.logits_BNV
                return output if logits is None else dataclasses.replace(output, logits_BNV=logits.flip(-1))

        return Flipped(load_decoder(checkpoint, self.device, dtype, self.ops), self.ops)


class FoundInTwoLines(Plain):
    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        return [Finding("sand", "wet\nand cold")]


class FoundNothingOfIt(Plain):
    @classmethod
    def diagnose(cls) -> Sequence[Finding]:
        return [Finding("sand", "")]


class FailsItsOwnTest(Plain):
    def self_tests(self) -> Sequence[SelfTest]:
        return [SelfTest("counting", "pebbles", 0.1, lambda: float("nan"))]


@pytest.mark.parametrize(
    ("backend", "check", "fault"),
    [
        (InTwoLines, 0, r"describe\(\) is .* not one line"),
        (AnotherEveryTime, 0, "hardware is 'machine 1' and then 'machine 2'|hardware is"),
        (NoDevice, 0, "its device is 'cpu', which is no torch.device"),
        (WrongInHalfPrecision, 1, r"bfloat16, seed 0, sequential, check_\w+.* is off by"),
        (FirstTree, 2, "rule .*, tree 1 of 24, .*: it accepts the nodes"),
        (FoundInTwoLines, 3, r"diagnose\(\) gives 'wet.*', which is not one line"),
        (FoundNothingOfIt, 3, "which does not say what it is of"),
        (FailsItsOwnTest, 3, r"counting \(pebbles\) is off by nan, not 1e-01"),
    ],
)
def test_a_faulty_backend_is_named(backend: type[Plain], check: int, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        backend_checks(backend())[check].run()


def test_the_backend_that_they_spoil_is_sound() -> None:
    says, _, accepts, finds, bits = backend_checks(Plain())
    for check in (says, accepts, finds):
        check.run()
    assert str(bits.run()).startswith("it refuses: deterministic: on backend 'plain'")


class PromisesTooMuch(Plain):
    """Torch's products, and says that a row's bits do not depend on the rows beside it."""

    def be_deterministic(self) -> None:
        self.deterministic = True

    def load(self, checkpoint: TensorSource, dtype: torch.dtype) -> Executor:
        executor = super().load(checkpoint, dtype)
        executor.bits_vary = None
        return executor


def test_a_promise_of_bits_that_is_not_kept_is_found() -> None:
    with pytest.raises(AssertionError, match="are not plain decoding's"):
        backend_checks(PromisesTooMuch())[4].run()
