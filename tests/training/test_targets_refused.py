"""Targets that no draft is trained for are refused in a line, whatever their layers lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.target_fingerprint import fingerprint
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("deepseek_v3", "trains dense decoders, and this model has a mixture of experts"),
        ("glm4_moe", "trains dense decoders, and this model has a mixture of experts"),
        ("youtu", "does not train attention to latents"),
    ],
)
def test_a_target_that_is_not_trained_for(family: str, why: str, tmp_path: Path) -> None:
    prints = set()
    for seed in (0, 1):
        write_checkpoint(tmp_path / str(seed), family, seed)
        target = open_checkpoint(str(tmp_path / str(seed)))
        # a run asks for it before it knows what it cuts
        prints.add(fingerprint(target))
    assert len(prints) == 2
    with pytest.raises(UserError, match=why):
        DraftShape([0]).config(target.config)
