"""Pipelines of models with recurrent layers answer as plain decoding does, alone and among others, turn after turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.engine.token_engine import TokenEngine, TokenRequest
from spec_sdk.model.recurrent.state import BEHIND
from spec_sdk.model.session import Session
from spec_sdk.tree import TokenTree
from tests.draft_heads.test_drafter import PROMPTS, answers, pipeline_of
from tests.support.tiny_checkpoints import write_checkpoint

TARGETS = ("qwen3_5", "lfm2", "falcon_h1", "nemotron_h_moe")
PIPELINES = {
    "suffix": (),
    "token_recycling": (),
    "lookahead": (),
    "sd_chain": ("model.draft=DRAFT",),
    "specinfer_tree": ("model.draft=DRAFT",),
    "easyspec_paper": ("model.draft=DRAFT",),
    "layer_skip_tree": (),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recurrent")
    for target in TARGETS:
        write_checkpoint(place / target, target, max_position_embeddings=2048)
        write_checkpoint(place / f"{target}-draft", target, seed=1)
    return place


@pytest.mark.parametrize("target", TARGETS)
def test_answers_are_those_of_plain_decoding(target: str, checkpoints: Path) -> None:
    plain = answers(pipeline_of(checkpoints / target, "pipeline=vanilla"), 1, PROMPTS)
    for name, options in PIPELINES.items():
        said = [option.replace("DRAFT", str(checkpoints / f"{target}-draft")) for option in options]
        pipeline = pipeline_of(checkpoints / target, f"pipeline={name}", *said)
        assert answers(pipeline, 1, PROMPTS) == plain, name
        assert answers(pipeline, 4, PROMPTS) == plain, name


@pytest.mark.parametrize("target", TARGETS)
def test_a_later_turn_goes_on_from_what_the_last_left(target: str, checkpoints: Path) -> None:
    """Prompts that begin with all, with most, or with little of the text before, in one engine and in fresh ones."""
    text = [5 + (i * i) % 80 for i in range(600)]
    turns = [text[:300], text, [*text[:590], 7, 8, 9], [*text[:40], 3], [*text, *text[:80]], text]
    pipeline = pipeline_of(checkpoints / target, "pipeline=suffix")
    engine = pipeline.new_engine(1)
    for turn in turns:
        assert answer(engine, turn) == answer(pipeline.new_engine(1), turn)


def answer(engine: TokenEngine, prompt: list[int]) -> list[int]:
    engine.add(TokenRequest(prompt, request_id=0, max_new_tokens=70, ignore_eos=True))
    found: list[int] = []
    while engine.busy:
        for progress in engine.step():
            assert progress.error is None
            found += progress.tokens
    return found


def test_trees_are_no_deeper_than_states_lie_behind(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no node goes on from rows that may be rejected."""
    depths: list[int] = []

    def noted(self: Session, slots: Sequence[int], trees: Sequence[TokenTree], *rest: Any, **options: Any) -> Any:
        depths.extend(tree.depth for tree in trees)
        return score(self, slots, trees, *rest, **options)

    score = Session.score
    monkeypatch.setattr(Session, "score", noted)
    pipeline = pipeline_of(checkpoints / "qwen3_5", "pipeline=prompt_lookup", "policy.depth=200")
    repeated = [5 + i for i in range(80)] * 6
    engine = pipeline.new_engine(1)
    engine.add(TokenRequest(repeated, request_id=0, max_new_tokens=90, ignore_eos=True))
    while engine.busy:
        engine.step()
    assert max(depths) == BEHIND
