"""Target and draft model have one tokenizer, and embeddings that are padded to different sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk import Engine, UserError
from spec_sdk.model.session import Session
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint

PADDING = 64
SAMPLED = ("max_new_tokens=40", "ignore_eos=true", "sampling.temperature=3", "policy=fixed", "policy.depth=3")


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("pipeline", ["sd_chain", "easyspec_tree", "specinfer_tree"])
def test_a_token_of_the_target_s_padding_ends_nothing(pipeline: str, native: bool, tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "target", vocab_size=VOCABULARY + PADDING)
    write_text_checkpoint(tmp_path / "draft")
    options = [*SAMPLED, f"model.draft={tmp_path / 'draft'}", f"backend.native={str(native).lower()}", "backend=cpu"]
    engine = Engine.from_pipeline(pipeline, target=tmp_path / "target", overrides=options)
    answers = engine.generate([[5, 6, 7], [8, 9, 5, 6]], chat=False)
    assert all(answer.error is None and len(answer.tokens) == 40 for answer in answers)
    # or nothing was shown
    assert any(token >= VOCABULARY for answer in answers for token in answer.tokens[:-4])


def test_it_is_fed_as_the_last_one_and_kept_as_it_is(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "target", vocab_size=VOCABULARY + PADDING)
    write_text_checkpoint(tmp_path / "draft")
    options = ["model.dtype=float32", "backend=cpu", f"model.draft={tmp_path / 'draft'}"]
    models = Engine.from_pipeline("sd_chain", target=tmp_path / "target", overrides=options).pipeline.models
    assert not models.session(models.target).fed_unknown
    session = models.session(models.draft())
    assert session.fed_unknown
    [unknown] = session.feed([0], [[5, VOCABULARY + 3, 6]])
    [last] = Session(session.executor).feed([0], [[5, VOCABULARY - 1, 6]])
    assert unknown.logits_KR.equal(last.logits_KR)
    assert session.tokens(0) == [5, VOCABULARY + 3, 6]


def test_a_draft_model_without_all_tokens_is_refused(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "target")
    write_text_checkpoint(tmp_path / "draft", vocab_size=VOCABULARY - 8)
    with pytest.raises(UserError, match=f"draft has {VOCABULARY - 8} tokens in its embedding, and .* in its tokenizer"):
        Engine.from_pipeline("sd_chain", target=tmp_path / "target", overrides=[f"model.draft={tmp_path / 'draft'}"])
