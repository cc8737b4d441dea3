"""Draft models as transformers takes them: what it reads of the directory is what drafts here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from spec_sdk.bench.peers.assistant import assistant_of
from spec_sdk.errors import UserError
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint
from tests.support.tiny_checkpoints import write_checkpoint

TOKENS = torch.tensor([[5, 9, 4, 33, 7, 210, 11]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(tmp_path / "cache"))


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(TOKENS).logits


def logits_in(directory: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert model.config.vocab_size == VOCABULARY
    return logits(model)


def test_a_cut_is_the_target_without_its_other_layers(tmp_path: Path) -> None:
    target = write_text_checkpoint(tmp_path / "target", num_hidden_layers=5)
    made = assistant_of(str(tmp_path / "target"), "cut", [0, 3, 4], "float32")
    assert made.name == "target, 3 of 5 layers" and (made.directory / "tokenizer.json").is_file()
    target.model.layers = torch.nn.ModuleList([target.model.layers[i] for i in (0, 3, 4)])
    torch.testing.assert_close(logits_in(made.directory), logits(target), rtol=1e-5, atol=1e-5)
    # made once; another cut, and one in another dtype, are others
    written = (made.directory / "model.safetensors").stat().st_mtime_ns
    assert assistant_of(str(tmp_path / "target"), "cut", [0, 3, 4], "float32") == made
    assert (made.directory / "model.safetensors").stat().st_mtime_ns == written
    others: list[tuple[str, Any, str]] = [
        ("auto", "auto", "float32"),
        ("cut", [0, 3, 4], "bfloat16"),
        ("cut:two_thirds", [1], "bfloat16"),
    ]
    directories = {assistant_of(str(tmp_path / "target"), *other).directory for other in others}
    assert len(directories | {made.directory}) == 4


@pytest.mark.parametrize("name", ["phi3", "glm4", "smollm3", "granite4", "exaone4"])
def test_a_cut_of_a_family_whose_layers_differ_or_whose_matrices_are_joined(name: str, tmp_path: Path) -> None:
    """Of a SmolLM3 the fourth layer is not rotated, which the cut has as its second."""
    target = write_checkpoint(tmp_path / "target", name, vocab_size=VOCABULARY)
    made = assistant_of(str(tmp_path / "target"), "cut", [0, 3, 4], "float32")
    target.model.layers = torch.nn.ModuleList([target.model.layers[i] for i in (0, 3, 4)])
    target.config.num_hidden_layers, target.config.use_cache = 3, False
    for key in ("layer_types", "no_rope_layers"):
        if getattr(target.config, key, None):
            setattr(target.config, key, [getattr(target.config, key)[i] for i in (0, 3, 4)])
    torch.testing.assert_close(logits_in(made.directory), logits(target), rtol=1e-4, atol=1e-4)


def test_a_draft_model_that_borrows_gets_the_target_s_embedding_and_drafts_all_tokens(tmp_path: Path) -> None:
    target = write_text_checkpoint(tmp_path / "target")
    draft = write_text_checkpoint(tmp_path / "draft", num_hidden_layers=2)
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    (tmp_path / "draft" / "config.json").write_text(json.dumps({**config, "weights_of_target": ["embedding"]}))
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    del tensors["model.embed_tokens.weight"]
    tensors["draft_vocabulary"] = torch.arange(0, 60, dtype=torch.int32)
    save_file(tensors, tmp_path / "draft" / "model.safetensors", {"format": "pt"})
    made = assistant_of(str(tmp_path / "target"), str(tmp_path / "draft"), "auto", "float32")
    assert made.name == "draft" and made.directory != tmp_path / "draft"
    draft.model.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight.data)
    torch.testing.assert_close(logits_in(made.directory), logits(draft), rtol=1e-5, atol=1e-5)


def test_a_whole_checkpoint_is_used_as_it_is_and_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_text_checkpoint(tmp_path / "target")
    write_text_checkpoint(tmp_path / "draft", num_hidden_layers=1)
    made = assistant_of(str(tmp_path / "target"), str(tmp_path / "draft"), "auto", "float32")
    assert made.directory == tmp_path / "draft"
    vocabulary = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"] = {f"{t}!" if i == 300 else t: i for t, i in vocabulary["model"]["vocab"].items()}
    vocabulary["model"]["merges"] = []
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match="draft has another vocabulary than target: it cannot assist it"):
        assistant_of(str(tmp_path / "target"), str(tmp_path / "draft"), "auto", "float32")


def test_a_cut_that_a_config_cannot_say_is_refused(tmp_path: Path) -> None:
    # its config.json names the layers without experts by their number
    write_checkpoint(tmp_path / "target", "qwen2_moe")
    with pytest.raises(UserError, match="name a checkpoint as task.assistant"):
        assistant_of(str(tmp_path / "target"), "cut", [0, 2, 3], "float32")
