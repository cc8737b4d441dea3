"""``pipeline=mtp_chain`` on GGUF files that carry a prediction module."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.source_cache import cache_root
from spec_sdk_drafters.mtp import MtpDrafter
from tests.checkpoints.gguf_modules import MODELS, write_with_module
from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of

IN_BITS = "model.weights=int8"
"""Few bits stay so, on backends that are no faster with them too."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # native kernels are compiled once on a machine, and not for this
    (tmp_path / "cache").mkdir()
    (cache_root() / "native").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "native").symlink_to(cache_root() / "native")
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", MODELS)
def test_the_files_own_module_in_few_bits(name: str, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    write_with_module(target, name, "Q8_0")
    pipeline = pipeline_of(target, "pipeline=mtp_chain", IN_BITS)
    drafter = pipeline.engine.drafter
    assert isinstance(drafter, MtpDrafter)
    assert drafter.draft_name == f"m, {'Qwen' if 'qwen' in name else 'DeepSeek'} MTP head"
    assert all(part.quantized is not None for part in drafter.head.projections)
    # embedding and output head are the target's very own
    assert drafter.head.embedding is pipeline.models.target.executor.decoder.embedding  # type: ignore[attr-defined]
    drafted = answers(pipeline, 3, PROMPTS[:4])
    assert drafted == answers(pipeline_of(target, "pipeline=vanilla", IN_BITS), 1, PROMPTS[:4])


def test_a_module_beside_its_model(tmp_path: Path) -> None:
    """llama.cpp's converter writes models without their modules, and modules without their models."""
    target, module = tmp_path / "m.gguf", tmp_path / "mtp-m.gguf"
    write_with_module(target, "qwen35", change=lambda writer, parts: parts.clear())
    write_with_module(module, "qwen35", alone=True)
    with pytest.raises(
        UserError, match=r"is not given, and m has no prediction module \(MTP\) among its tensors; name"
    ):
        pipeline_of(target, "pipeline=mtp_chain")
    pipeline = pipeline_of(target, "pipeline=mtp_chain", f"drafter.checkpoint={module}", "drafter.growth=dynamic")
    assert isinstance(pipeline.engine.drafter, MtpDrafter)
    assert pipeline.engine.drafter.draft_name == "mtp-m, Qwen MTP head"
    assert answers(pipeline, 2, PROMPTS[:4]) == answers(pipeline_of(target, "pipeline=vanilla"), 1, PROMPTS[:4])


def test_the_module_is_as_long_as_the_target_is_served(tmp_path: Path) -> None:
    write_with_module(tmp_path / "m.gguf", "glm4moe")
    drafter = pipeline_of(tmp_path / "m.gguf", "pipeline=mtp_chain", "model.context=100").engine.drafter
    assert isinstance(drafter, MtpDrafter) and drafter.session.context == 100
