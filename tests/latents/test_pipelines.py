"""Pipelines of models that attend to latents answer as plain decoding does, alone and among others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of
from tests.support.tiny_checkpoints import write_checkpoint

PIPELINES = {
    "suffix": (),
    "token_recycling": (),
    "lookahead": (),
    "sd_chain": ("model.draft=DRAFT",),
    "specinfer_tree": ("model.draft=DRAFT",),
    "easyspec_paper": ("model.draft=DRAFT",),
    "layer_skip_tree": (),
}
NATIVE = {"moe_intermediate_size": 32}
"""Whole panels of the kernels."""


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("target", ["deepseek_v3", "youtu"])
def test_answers_are_those_of_plain_decoding(target: str, native: bool, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", target, **NATIVE)
    write_checkpoint(tmp_path / "draft", target, seed=1, **NATIVE)
    on = f"backend.native={str(native).lower()}"
    plain = answers(pipeline_of(tmp_path / "target", "pipeline=vanilla", on), 1, PROMPTS)
    for name, options in PIPELINES.items():
        said = [option.replace("DRAFT", str(tmp_path / "draft")) for option in options]
        pipeline = pipeline_of(tmp_path / "target", f"pipeline={name}", on, *said)
        assert answers(pipeline, 1, PROMPTS) == plain, name
        assert answers(pipeline, 4, PROMPTS) == plain, name
