"""What the GPU suite measures of filters runs, and finds a kernel that keeps other tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import kept_tokens
from spec_sdk_backends.triton_ops import TritonOps

QUICK = ["--device=cpu", "--quick"]


def test_every_sampling_keeps_what_sorting_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "kept_tokens.json"
    assert kept_tokens.main([*QUICK, f"--output={output}"]) == 0
    report = json.loads(output.read_text())
    assert len(report["cases"]) == len(kept_tokens.SAMPLINGS) * len(kept_tokens.SCALES) and not report["left_out"]
    assert all(set(case["wall_ms"]) == {"kernel", "sort"} for case in report["cases"])

    def keeps_all(ops: TritonOps, logits_RV: torch.Tensor, shaping_B4: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.full((len(logits_RV),), -torch.inf), torch.zeros(len(logits_RV), dtype=torch.int32)

    monkeypatch.setattr(TritonOps, "least_kept", keeps_all)
    assert kept_tokens.main(QUICK) == 1
    assert kept_tokens.main([*QUICK, "--seconds=-1"]) == 1
