"""Nothing that a cycle hands to a GPU waits for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.ops.uploads import numbers_on, to_device

ROOT = Path(__file__).parents[2]
OUTSIDE_CYCLES = ("bench", "diagnosis", "evaluation", "testing", "training", "layer_tuning.py", "ops/attention_mask.py")
"""Rooms of spec_sdk that make no cycles, or none that is timed."""


def test_a_gpu_is_sent_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def noted(name: str) -> Any:
        def note(values: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
            calls.append((name, *arguments, named))
            return values

        return note

    for name in ("pin_memory", "to"):
        monkeypatch.setattr(torch.Tensor, name, noted(name))
    gpu = torch.device("cuda", 1)
    numbers_on(gpu, ([1, 2], [3, 4]))
    assert calls == [("pin_memory", {}), ("to", gpu, {"non_blocking": True})]
    calls.clear()
    numbers_on(gpu, [])
    to_device(torch.zeros(2), torch.device("cpu"))
    assert [name for name, *_ in calls] == ["to", "to"], "an empty tensor has no memory to pin, and the host needs none"


def test_numbers_are_as_they_were() -> None:
    cpu = torch.device("cpu")
    assert numbers_on(cpu, []).dtype == torch.int64
    assert numbers_on(cpu, [0.5], torch.bfloat16).dtype == torch.bfloat16
    values = torch.arange(3)
    assert to_device(values, cpu) is values


def pageable(path: Path) -> Iterator[int]:
    """Lines on which numbers of the host go straight to a device."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    for call in calls:
        makes = ast.unparse(call.func) in ("torch.tensor", "torch.as_tensor")
        if makes and any(keyword.arg == "device" for keyword in call.keywords):
            yield call.lineno


def test_cycles_make_no_tensor_of_numbers_on_a_device() -> None:
    """``torch.tensor(..., device=...)`` copies from pageable memory, for which the host waits."""
    files = [*(ROOT / "spec_sdk").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    outside = tuple(str(ROOT / "spec_sdk" / room) for room in OUTSIDE_CYCLES)
    found = [f"{path}:{line}" for path in files if not str(path).startswith(outside) for line in pageable(path)]
    assert len(files) > 300 and not found
