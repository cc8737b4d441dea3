"""A draft model whose logits are not usable for one of several requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk import Engine
from spec_sdk.contracts import DraftLogits
from spec_sdk.model.session import Session
from tests.support.text_engine import checkpoint as checkpoint

PROMPTS = ["Why is the sky blue?", "Name three colours."]
OPTIONS = ("max_new_tokens=12", "ignore_eos=true", "sampling.temperature=1", "policy=fixed", "policy.depth=3")


@pytest.mark.parametrize("drafting", ["grow", "feed"])
def test_the_others_go_on(drafting: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose levels are fed together with those of the one that fails, or whose roots are."""
    draft = ("model.draft=cut", "model.draft_layers=[0]")
    engine = Engine.from_pipeline("sd_chain", target=checkpoint, overrides=[*OPTIONS, *draft], max_num_seqs=2)
    drafter: Any = engine.pipeline.engine.drafter
    inner, failed = getattr(Session, drafting), []

    def spoilt(session: Session, slots: Sequence[int], *arguments: Any) -> list[DraftLogits]:
        levels: list[DraftLogits] = inner(session, slots, *arguments)
        if session is drafter.session and len(slots) == 2:
            failed.append(slots)
            levels[slots.index(1)].logits_KR.fill_(torch.nan)
        return levels

    monkeypatch.setattr(Session, drafting, spoilt)
    one, other = engine.generate(PROMPTS)
    assert len(failed) == 1 and not engine.pipeline.engine.busy
    assert other.error is not None and "is NaN" in str(other.error)
    assert one.error is None and len(one.tokens) == 12
