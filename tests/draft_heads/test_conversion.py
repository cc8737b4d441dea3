"""Pickled heads are converted once, and only their tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.conversion import convert_draft_head
from spec_sdk.model.draft_heads.opening import open_draft_head
from spec_sdk.model.load_decoder import load_decoder, load_target_ends
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from tests.support.tiny_decoder import ModelTensors
from tests.support.tiny_heads import CPU, HeadSizes, eagle1_tensors, eagle3_tensors

SIZES = HeadSizes()


def pickled(directory: Path, state: Any, name: str = "pytorch_model.bin") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SIZES.config(draft_vocab_size=SIZES.W)))
    torch.save(state, directory / name)
    return directory


def test_the_tensors_are_the_same(tmp_path: Path) -> None:
    for layout, tensors in (("EAGLE-3", eagle3_tensors(SIZES)), ("EAGLE-1/2", eagle1_tensors(SIZES))):
        source = pickled(tmp_path / layout[:7], tensors)
        assert convert_draft_head(source, tmp_path / "new" / layout[:7]).layout == layout
        head = open_draft_head(str(tmp_path / "new" / layout[:7]))
        for name, tensor in tensors.items():
            found = head.tensors.tensor(name.replace("midlayer", "layers.0"))
            assert torch.equal(found, tensor) and found.dtype == tensor.dtype
        assert (tmp_path / "new" / layout[:7] / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_tensors_that_share_memory_and_several_files(tmp_path: Path) -> None:
    tensors = eagle3_tensors(SIZES)
    tensors["norm.weight"], tensors["midlayer.hidden_norm.weight"] = torch.ones(2, SIZES.M)
    first = {"fc.weight": tensors.pop("fc.weight")}
    source = pickled(tmp_path / "a", first, "pytorch_model-00001-of-00002.bin")
    pickled(source, tensors, "pytorch_model-00002-of-00002.bin")
    assert convert_draft_head(source, tmp_path / "b").layout == "EAGLE-3"


class Evil:
    """What a pickle can do to whoever loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_no_code_of_a_pickle_runs(tmp_path: Path) -> None:
    source = pickled(tmp_path / "a", {"fc.weight": torch.zeros(2), "x": Evil(tmp_path / "ran")})
    with pytest.raises(UserError, match="is damaged, or holds more than tensors, and is not converted"):
        convert_draft_head(source, tmp_path / "b")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], "holds a list, not tensors by name"),
        ({"epoch": 3}, "'epoch' is a int, not a tensor"),
        ({"x.weight": torch.zeros(2)}, "is no draft head of a known layout"),
    ],
)
def test_what_is_no_head(state: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        convert_draft_head(pickled(tmp_path / "a", state), tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_what_cannot_be_read_or_written(tmp_path: Path) -> None:
    source = pickled(tmp_path / "a", eagle3_tensors(SIZES))
    with pytest.raises(UserError, match="is there already"):
        convert_draft_head(source, tmp_path / "a")
    pickled(source, {}, "optimizer.pt")
    convert_draft_head(source, tmp_path / "b")
    (source / "pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(UserError, match="is damaged"):
        convert_draft_head(source, tmp_path / "c")
    (source / "pytorch_model.bin").unlink()
    (source / "optimizer.pt").unlink()
    with pytest.raises(UserError, match="has no pickle weights"):
        convert_draft_head(source, tmp_path / "c")


def test_the_target_s_ends_are_those_of_its_decoder() -> None:
    """A target that is not whole in this process lends what is read from its files."""
    source = ModelTensors("llama2", 3)
    loaded = load_target_ends(source, "x", CPU, torch.float32, Ops())
    own = TargetEnds.of("x", load_decoder(source, CPU, torch.float32))
    assert (loaded.layers, loaded.vocabulary, loaded.config) == (own.layers, own.vocabulary, own.config)
    assert torch.equal(loaded.embedding.weight_VM, own.embedding.weight_VM)
    assert torch.equal(loaded.output_head.weight_OI, own.output_head.weight_OI)
    assert torch.equal(loaded.final_norm_M, own.final_norm_M)
