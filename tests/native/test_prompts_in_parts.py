"""Whether prompts run natively part by part is measured once for a shape of blocks, and kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk_backends import measured_once
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from spec_sdk_backends.native import prompts_in_parts
from spec_sdk_backends.native.decoder import NativeDecoder
from spec_sdk_backends.native.prompts_in_parts import measure, parts_are_as_fast
from tests.support.tiny_decoder import ModelTensors


def executor_of(**sizes: int) -> TorchExecutor:
    backend = CpuBackend(CpuConfig(native=True))
    backend.be_deterministic()
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64} | sizes
    executor = backend.load(ModelTensors("smollm", 0, **sizes), torch.float32)
    assert isinstance(executor, TorchExecutor) and isinstance(executor.decoder, NativeDecoder)
    return executor


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing is, neither by this process nor by others."""
    monkeypatch.setattr(measured_once, "cache_root", lambda: tmp_path)
    before = dict(prompts_in_parts._found)
    prompts_in_parts._found.clear()
    yield tmp_path / "native"
    prompts_in_parts._found.clear()
    prompts_in_parts._found.update(before)


@pytest.mark.parametrize("parts_are_slow", [False, True])
def test_both_ways_are_timed(parts_are_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, run = executor_of(), NativeDecoder.blocks_at_once

    def slow(self: NativeDecoder, h_BNM: torch.Tensor, *of_pass: Any) -> torch.Tensor | None:
        if h_BNM.shape[1] > 64 and self.in_parts == parts_are_slow:
            time.sleep(0.2)
        return run(self, h_BNM, *of_pass)

    monkeypatch.setattr(NativeDecoder, "blocks_at_once", slow)
    assert measure(executor.decoder, executor.ops) != parts_are_slow


def test_once_for_a_shape(decided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def noted(decoder: Decoder, ops: object) -> bool:
        measured.append(decoder.layers)
        return len(measured) == 1

    monkeypatch.setattr(prompts_in_parts, "measure", noted)
    first, other = executor_of(), executor_of(intermediate_size=96)
    assert [parts_are_as_fast(e.decoder, e.ops) for e in (first, first, other)] == [True, True, False]
    assert measured == [first.layers, other.layers] and len(list(decided.iterdir())) == 2
    # another process
    prompts_in_parts._found.clear()
    assert [parts_are_as_fast(e.decoder, e.ops) for e in (other, first)] == [False, True] and len(measured) == 2


def test_large_blocks_are_timed_alone(
    decided: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told of, as that takes a while."""
    counts: list[int] = []

    def noted(decoder: Decoder, ops: object) -> bool:
        counts.append(decoder.layers)
        return True

    monkeypatch.setattr(prompts_in_parts, "measure", noted)
    executor = executor_of()
    parts_are_as_fast(executor.decoder, executor.ops)
    assert counts == [executor.layers] and not capsys.readouterr().err
    prompts_in_parts._found.clear()
    monkeypatch.setattr(prompts_in_parts, "LEAST_BYTES", 1)
    monkeypatch.setattr(prompts_in_parts, "QUICK_BYTES", 1)
    parts_are_as_fast(executor.decoder, executor.ops)
    assert (
        counts == [executor.layers, 1]
        and capsys.readouterr().err == "timing prompts in float32, once on this machine\n"
    )
