"""Prediction modules of GGUF files, with their models and alone, beside those of checkpoints in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.draft_heads.opening import open_draft_head, open_own_gguf_module
from spec_sdk.model.draft_heads.session import DraftHeadSession
from spec_sdk.model.load_decoder import load_decoder
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops.embedding import QuantizedEmbedding
from spec_sdk.tree import TreeBuilder
from tests.checkpoints.gguf_files import tiny_model, write_gguf
from tests.checkpoints.gguf_modules import (
    BLOCK,
    LAYERS,
    MODELS,
    WIDTH,
    Change,
    Tensors,
    leave_out,
    part_name,
    write_published,
    write_with_module,
)
from tests.support.draft_logits import roots_of, rows_of
from tests.support.tiny_checkpoints import checkpoint_tensors
from tests.support.tiny_mtp import load_module

EMBEDDING, HEAD = part_name("embed_tokens"), part_name("shared_head_head")


def ends_of(path: Path) -> TargetEnds:
    decoder = load_decoder(open_checkpoint(str(path)), torch.device("cpu"), torch.float32)
    return TargetEnds.of("tiny", decoder)


def logits_of(module: Path, ends: TargetEnds, **choices: Any) -> torch.Tensor:
    """Behind a text, and behind a token that the module drafted."""
    session = DraftHeadSession(load_module(module, ends, torch.float32, **choices))
    state_NM = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(5))
    (root_V,) = roots_of(session.feed_pairs([0], [[7, 8, 9, 10]], [session.head.features({LAYERS: state_NM})]))
    tree = TreeBuilder(10)
    tree.add(0, 33, "chosen")
    return torch.stack([root_V, *rows_of(session.grow([0], [tree], [1]))[0]])


@pytest.mark.parametrize("name", MODELS)
def test_drafts_are_those_of_the_published_module(name: str, tmp_path: Path) -> None:
    """Their logits, read from the model's file, from one of the module alone, and from safetensors."""
    whole, alone = tmp_path / "m.gguf", tmp_path / "mtp-m.gguf"
    model = write_with_module(whole, name)
    write_with_module(alone, name, alone=True)
    ends = ends_of(whole)
    expected = logits_of(write_published(tmp_path / "published", model), ends)
    assert expected.std() > 0.1
    # a gain less one loses a last digit
    torch.testing.assert_close(logits_of(whole, ends), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits_of(alone, ends), logits_of(whole, ends))
    layout = "Qwen MTP" if "qwen" in name else "DeepSeek MTP"
    assert open_draft_head(str(alone)).layout == layout and open_draft_head(str(alone)).name == "mtp-m"
    assert open_own_gguf_module(whole, "tiny").name == "tiny"


@pytest.mark.parametrize("name", ["qwen35moe", "deepseek2"])
def test_matrices_in_few_bits_stay_so(name: str, tmp_path: Path) -> None:
    """Those of experts and of single heads, too."""
    path = tmp_path / "m.gguf"
    write_with_module(path, name, "Q4_0")
    ends = ends_of(path)
    for stored, kept in (("int8", True), ("dense", False), ("auto", False)):
        head = load_module(path, ends, torch.float32, stored=stored).head
        own = [part for part in head.projections if part is not ends.output_head]
        assert len(own) > 15 and {part.quantized is not None for part in own} == {kept}
    assert (logits_of(path, ends, stored="int8") - logits_of(path, ends, stored="dense")).abs().max() < 1e-5


# --- embedding and output head ---


def target_matrices(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Embedding and output head of the model that is written."""
    family, sizes = MODELS[name]
    tensors = checkpoint_tensors(tiny_model(family, **{"num_hidden_layers": LAYERS + 1, **sizes}))
    return tensors["model.embed_tokens.weight"].numpy(), tensors["lm_head.weight"].numpy()


def repeated(name: str, factor: float = 1.0) -> Change:
    def change(writer: gguf.GGUFWriter, parts: Tensors) -> None:
        parts[EMBEDDING], parts[HEAD] = (factor * matrix for matrix in target_matrices(name))

    return change


def coarser(name: str) -> str:
    """As llama.cpp rounds them: the target's own to more bits."""
    return "Q4_0" if "nextn" in name else "Q8_0"


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0", coarser], ids=["F32", "Q8_0", "coarser"])
def test_copies_of_the_targets_are_not_held_twice(kind: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_with_module(path, name, kind, repeated(name))
    ends = ends_of(path)
    head = load_module(path, ends, torch.float32, stored="int8").head
    assert head.embedding is ends.embedding and head.output_head is ends.output_head
    assert not any("embed" in tensor or "lm_head" in tensor for tensor in open_draft_head(str(path)).tensors.names)


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_others_are_the_modules_own(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_with_module(path, name, "Q8_0", repeated(name, 1.5))
    head = load_module(path, ends_of(path), torch.float32, stored="int8").head
    embedding_VM, head_VM = (torch.from_numpy(1.5 * matrix) for matrix in target_matrices(name))
    assert isinstance(head.embedding, QuantizedEmbedding)
    assert (head.embedding.weight_VM - embedding_VM).abs().max() < 0.01 * embedding_VM.abs().max()
    assert head.output_head.quantized is not None
    assert (head.output_head.weight_OI - head_VM).abs().max() < 0.01 * head_VM.abs().max()


def test_a_module_without_a_final_norm_has_the_models(tmp_path: Path) -> None:
    """As llama.cpp reads such a file."""
    norm = part_name("shared_head.norm")
    model = checkpoint_tensors(write_with_module(tmp_path / "a.gguf", "glm4moe", change=lambda _, p: p.pop(norm)))

    def change(writer: gguf.GGUFWriter, parts: Tensors) -> None:
        parts[norm] = model["model.norm.weight"].numpy()

    write_with_module(tmp_path / "b.gguf", "glm4moe", change=change)
    ends = ends_of(tmp_path / "a.gguf")
    assert torch.equal(logits_of(tmp_path / "a.gguf", ends), logits_of(tmp_path / "b.gguf", ends))


# --- what is not read ---


def say(key: str, value: int) -> Change:
    def change(writer: gguf.GGUFWriter, parts: Tensors) -> None:
        writer.kv_data[0][f"glm4moe.{key}"].value = value

    return change


def without(*names: str) -> Change:
    def change(writer: gguf.GGUFWriter, parts: Tensors) -> None:
        leave_out(writer, lambda stored: stored in [f"{BLOCK}{name}.weight" for name in names])

    return change


def with_part(name: str, shape: tuple[int, ...], block: int = LAYERS) -> Change:
    def change(writer: gguf.GGUFWriter, parts: Tensors) -> None:
        parts[f"blk.{block}.{name}.weight"] = np.zeros(shape, np.float32)

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "several": (say("nextn_predict_layers", 2), r"has 2 prediction modules \(glm4moe.nextn_predict_layers\); only a"),
    "counted, not there": (
        lambda writer, parts: parts.clear(),
        r"has no prediction module \(MTP\), the only draft head that is r",
    ),
    "not where it is counted": (
        say("block_count", 4),
        "module in block 2, and glm4moe.block_count less glm4moe.nextn_p",
    ),
    "not counted": (say("nextn_predict_layers", 0), "in block 2, and .* less glm4moe.nextn_predict_layers is 3$"),
    "a second one": (with_part("nextn.eh_proj", (64, 128), 1), "has 2 prediction modules"),
    "no joining layer": (without("nextn.eh_proj"), "tensor 'blk.2.nextn.eh_proj.weight' is missing$"),
    "no norm": (without("nextn.hnorm"), "tensor 'blk.2.nextn.hnorm.weight' is missing$"),
    "no attention": (without("attn_q", "attn_k"), "tensor 'blk.2.attn_q.weight' and 1 more are missing$"),
    "no experts": (without("ffn_gate_exps"), "tensor 'blk.2.ffn_gate_exps.weight' of all experts is missing; a"),
    "another shape": (with_part("nextn.eh_proj", (64, 64)), r"eh_proj.weight' has shape \[64, 64\], but the config as"),
    "an unknown part": (with_part("nextn.embed_norm", (64,)), "'blk.2.nextn.embed_norm.weight' would be left out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_modules_that_are_not_read(case: str, tmp_path: Path) -> None:
    path, (change, message) = tmp_path / "mtp-m.gguf", REFUSED[case]
    write_with_module(path, "glm4moe", change=change, alone=case != "a second one")
    with pytest.raises(UserError, match=message) as caught:
        open_draft_head(str(path))
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_a_module_without_its_model_is_no_target(tmp_path: Path) -> None:
    write_with_module(tmp_path / "mtp-m.gguf", "deepseek2", alone=True)
    line = r"mtp-m.gguf: holds a prediction module \(MTP\) without its model; name it with drafter.checkpoint"
    with pytest.raises(UserError, match=line):
        open_checkpoint(str(tmp_path / "mtp-m.gguf"))


def test_a_module_of_another_model(tmp_path: Path) -> None:
    write_with_module(tmp_path / "m.gguf", "glm4moe")
    write_with_module(tmp_path / "mtp-m.gguf", "qwen35", alone=True, vocab_size=400)
    with pytest.raises(UserError, match="mtp-m.gguf: the head is made for a target of vocabulary 400, and tiny has 38"):
        load_module(tmp_path / "mtp-m.gguf", ends_of(tmp_path / "m.gguf"))


def test_modules_of_other_architectures_are_not_known(tmp_path: Path) -> None:
    """Of a model that is run, whose module is not."""

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.zeros((64, 128), np.float32))

    write_gguf(tmp_path / "m.gguf", "smollm", customize=add, num_hidden_layers=5)
    with pytest.raises(
        UserError, match=r"modules of 'llama' files are not read \(these are: deepseek2, glm4moe, qwen3n"
    ):
        open_draft_head(str(tmp_path / "m.gguf"))
