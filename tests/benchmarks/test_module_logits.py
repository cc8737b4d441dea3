"""``benchmarks.module_logits``, with a stand-in for llama.cpp."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import module_logits
from tests.checkpoints.gguf_modules import MODELS


@pytest.mark.parametrize(("away", "status"), [(0.0, 0), (0.25, 1)])
def test_logits_that_are_apart_fail(away: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"logits": [[1.0, 2.0], [3.0, 4.0 + away]], "version": "1.2.3"})
    python, output = tmp_path / "python", tmp_path / "found.json"
    # of the model's file it is never apart
    near = answer.replace(str(4.0 + away), "4.0")
    python.write_text(f"#!/bin/sh\ncat > /dev/null\ncase $2 in */mtp-*) echo '{answer}';; *) echo '{near}';; esac\n")
    python.chmod(0o755)
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module_logits, "MODELS", {"qwen35": MODELS["qwen35"]})
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    monkeypatch.setattr(module_logits, "logits_of", lambda file, ends: own)
    monkeypatch.setattr(sys, "argv", ["module_logits", f"--llama-python={python}", f"--output={output}"])
    assert module_logits.main() == status
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["models"]["qwen35"] == {"with its model": 0.0, "alone": away, "deviation": float(own.std())}
    assert found["llama_cpp"] == "1.2.3"


def test_what_is_computed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of both files."""
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))
    seen: list[torch.Tensor] = []
    own = module_logits.logits_of

    def kept(*of: object) -> torch.Tensor:
        seen.append(own(*of))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(module_logits, "logits_of", kept)
    answer = {"logits": 0.0, "version": ""}
    found = module_logits.differences("glm4moe", tmp_path, lambda file: answer)
    assert torch.equal(*seen) and len(seen[0]) == 2 and seen[0].isfinite().all()
    assert found["alone"] == found["with its model"] == float(seen[0].abs().max()) > 0.1
