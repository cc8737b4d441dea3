"""Draft models as directories that are whole: transformers computes with them what is computed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from spec_sdk.errors import UserError
from spec_sdk.export.draft_source import draft_source
from spec_sdk.export.exporting import Asked, export
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.borrowed_weights import BorrowingModel
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.session import Session
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.tree import TokenTree
from tests.checkpoints.test_own_head import agree, with_head
from tests.support.tiny_checkpoints import VOCABULARY, write_checkpoint
from tests.training.test_draft_directory import multimodal, written
from tests.training.test_trainable import CPU

TOKENS = [5, 9, 33, 7, 60, 12]
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("stored", ["float32", "int4"])
@pytest.mark.parametrize("name", ["smollm", "llama2", "qwen3", "phi3", "glm4", "smollm3", "granite"])
def test_a_trained_draft_is_written_whole(name: str, stored: str, tmp_path: Path) -> None:
    target = written(tmp_path, name, stored, False, token_R=torch.arange(0, VOCABULARY, 2), **SIZES)
    place = tmp_path / "draft"
    source = draft_source(str(place), {}, str(tmp_path / "target"), "auto")
    export(source, Asked(str(tmp_path / "target"), dtype=torch.float32), tmp_path / "out")
    draft, whole = open_checkpoint(str(place)), open_checkpoint(str(tmp_path / "out"))
    assert not whole.borrowed and whole.draft_vocabulary is None
    lent = BorrowingModel(draft, draft.borrowed, target)
    for tensor in weights_of(draft.config).shapes:
        assert torch.equal(whole.tensor(tensor), lent.tensor(tensor).float()), tensor
    session = Session(TorchExecutor(load_decoder(whole, CPU, torch.float32), Ops()))
    ours_NV = session.score([0], [TokenTree.chain(TOKENS[0], TOKENS[1:])])[0].logits_NV
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        theirs_NV = model.eval()(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(ours_NV, theirs_NV, atol=1e-4, rtol=1e-4)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__] and "weights_of_target" not in config
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "target" / "tokenizer.json").read_bytes()


def test_of_a_multimodal_model_the_text_is_written(tmp_path: Path) -> None:
    multimodal(tmp_path / "target")
    target = str(tmp_path / "target")
    export(draft_source(target, {}, target, "auto"), Asked(target, dtype=torch.float32), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "gemma3_text" and config["architectures"] == ["Gemma3ForCausalLM"]
    assert "text_config" not in config and config["eos_token_id"] == 2
    assert all(name.startswith("model.") for name in load_file(tmp_path / "out" / "model.safetensors"))
    agree(tmp_path / "out")


def test_an_export_may_be_read_like_any_new_files(tmp_path: Path) -> None:
    multimodal(tmp_path / "target")
    target = str(tmp_path / "target")
    export(draft_source(target, {}, target, "auto"), Asked(target, dtype=torch.float32), tmp_path / "out")
    (tmp_path / "new").touch()
    allowed = (tmp_path / "new").stat().st_mode
    assert {path.name for path in (tmp_path / "out").iterdir() if path.stat().st_mode != allowed} == set()


def test_a_head_that_config_json_denies_is_written_and_said(tmp_path: Path) -> None:
    with_head(tmp_path / "target")
    target = str(tmp_path / "target")
    export(draft_source(target, {}, target, "auto"), Asked(target, dtype=torch.float32), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    agree(tmp_path / "out")


def test_the_rotary_base_is_written_that_counts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", "smollm")
    path = tmp_path / "target" / "config.json"
    values = {**json.loads(path.read_text()), "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert values["rope_parameters"]["rope_theta"] != 10000.0
    path.write_text(json.dumps(values))
    target = str(tmp_path / "target")
    export(draft_source(target, {}, target, "auto"), Asked(target, dtype=torch.float32), tmp_path / "out")
    assert open_checkpoint(str(tmp_path / "out")).config == open_checkpoint(target).config
    agree(tmp_path / "out")


def test_what_is_in_few_bits_becomes_bfloat16(tmp_path: Path) -> None:
    written(tmp_path, "smollm", "int4", False, **SIZES)
    source = draft_source(str(tmp_path / "draft"), {}, str(tmp_path / "target"), "auto")
    export(source, Asked(str(tmp_path / "target")), tmp_path / "out")
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}


def test_refusals(tmp_path: Path) -> None:
    written(tmp_path, "smollm", "float32", True)
    (tmp_path / "other").mkdir()
    write_checkpoint(tmp_path / "other", vocab_size=80)
    target, out = str(tmp_path / "target"), tmp_path / "out"
    with pytest.raises(UserError, match="80 tokens, and target 96"):
        export(draft_source(str(tmp_path / "other"), {}, target, "auto"), Asked(target), out)
    with pytest.raises(UserError, match="speculators does not hold draft models; use hf"):
        export(draft_source(str(tmp_path / "draft"), {}, target, "auto"), Asked(target, "speculators"), out)
    for draft, words in (("cut", "a cut has no files"), ("cut:half", "a cut has no files"), ("auto", "no installed")):
        with pytest.raises(UserError, match=words):
            draft_source(None, {"draft": None}, target, draft)
    with pytest.raises(UserError, match="'suffix' has no files to export"):
        draft_source(None, {"name": "suffix"}, target, "auto")
    with pytest.raises(UserError, match="no installed package has a head"):
        draft_source(None, {"checkpoint": None}, target, "auto")
    assert not out.exists()
