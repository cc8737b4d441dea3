"""From a prompt to its first token in few hops: a reader can follow them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from spec_sdk.ops.linear import Projection
from spec_sdk.pipeline import build_pipeline
from spec_sdk.registry import Registry
from tests.support.real_pipelines import settings_of
from tests.support.tiny_checkpoints import write_checkpoint

MOST = 12
"""Nested calls of our own code."""
OURS = tuple(str(Path(__file__).parents[2] / folder) for folder in ("spec_sdk", "plugins"))


@pytest.mark.parametrize("name", ["vanilla", "sd_chain", "easyspec_paper", "alspec"])
def test_a_weight_is_at_most_twelve_calls_away_from_the_prompt(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, "smollm", 3)
    settings = settings_of(f"pipeline={name}", f"model.target={tmp_path}", "backend.pack_weights=false")
    pipeline = build_pipeline(settings, Registry.discover())
    deepest: list[list[str]] = [[]]
    multiply = Projection.__call__

    def counted(self: Projection, x: torch.Tensor) -> torch.Tensor:
        frame, calls = sys._getframe(1), ["__call__"]
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS) and frame.f_code.co_name not in ("<genexpr>", "<listcomp>"):
                calls.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        deepest[0] = max(deepest[0], calls, key=len)
        return multiply(self, x)

    monkeypatch.setattr(Projection, "__call__", counted)
    next(iter(pipeline.stream([5, 9, 17, 5, 9], max_new_tokens=4)))
    assert deepest[0] and len(deepest[0]) <= MOST, " ← ".join(deepest[0])
