"""Hugging Face-layout directories: what opens, and one clear line for what does not."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.models import Models
from spec_sdk.ops import Ops
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from tests.support.lfs_pointer import POINTER
from tests.support.tiny_checkpoints import ARCHITECTURES, checkpoint_tensors, write_checkpoint


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "tiny"
    write_checkpoint(directory, "llama2")
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def error_of(reference: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        open_checkpoint(str(reference))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the weights."""
    tensors = dict(load_file(directory / "model.safetensors"))
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def drop(tensors: dict[str, torch.Tensor], *names: str) -> None:
    for name in names:
        del tensors[name]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_tensor_of_the_model_is_there(name: str, tmp_path: Path) -> None:
    state = checkpoint_tensors(write_checkpoint(tmp_path / name, name))
    checkpoint = open_checkpoint(str(tmp_path / name))
    tied = {"lm_head.weight"} if checkpoint.config.tie_embeddings else set()
    assert checkpoint.names() == set(state) - tied
    assert all(torch.equal(checkpoint.tensor(n), state[n]) for n in checkpoint.names())
    assert checkpoint.name == name and checkpoint.reference == str(tmp_path / name)
    assert checkpoint.tokenizer.encode("a b") == [4, 5]


def test_sharded(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "whole", "llama2")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    shutil.copy(tmp_path / "whole" / "tokenizer.json", tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    checkpoint = open_checkpoint(str(tmp_path / "shards"))
    assert all(torch.equal(checkpoint.tensor(n), model.state_dict()[n]) for n in checkpoint.names())


def test_half_precision_is_kept_as_stored(directory: Path) -> None:
    rewrite(directory, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    assert open_checkpoint(str(directory)).tensor("model.norm.weight").dtype == torch.bfloat16


def test_unexpected_tensors_are_ignored(directory: Path) -> None:
    extra = "model.layers.0.self_attn.rotary_emb.inv_freq"
    more = {extra: torch.ones(4), "model.layers.0.mlp.up_proj.bias": torch.ones(80)}
    rewrite(directory, lambda tensors: tensors.update(more))
    checkpoint = open_checkpoint(str(directory))
    assert not any(name.endswith(("inv_freq", "bias")) for name in checkpoint.names())
    with pytest.raises(KeyError):
        checkpoint.tensor(extra)


def test_missing_places_and_files(directory: Path, tmp_path: Path) -> None:
    assert f"no such file or directory, did you mean '{tmp_path}/tiny'?" in error_of(tmp_path / "tinny")
    assert "nowhere does not exist" in error_of(tmp_path / "nowhere" / "model")
    assert "empty" in error_of(" ")
    (tmp_path / "empty").mkdir()
    assert "neither a config.json nor a .gguf" in error_of(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("x")
    assert "neither a model directory nor a .gguf file" in error_of(tmp_path / "notes.txt")
    assert "name the directory" in error_of(directory / "model.safetensors")
    (directory / "tokenizer.json").rename(directory / "t.json")
    assert "has no tokenizer.json" in error_of(directory)
    (directory / "config.json").rename(directory / "c.json")
    assert "no config.json" in error_of(directory)


def test_config_without_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    assert "no weights" in error_of(directory)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_refused_unread(name: str, directory: Path) -> None:
    (directory / name).write_bytes(b"\x80\x04not a pickle that would load")
    open_checkpoint(str(directory))  # beside safetensors it does not matter
    (directory / "model.safetensors").unlink()
    assert "pickle" in error_of(directory) and "safetensors" in error_of(directory)
    assert "pickle" in error_of(directory / name)


def test_several_gguf_files(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "2 .gguf files, name one of them: a.gguf, b.gguf" in error_of(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_truncated_weights(share: float, directory: Path) -> None:
    path = directory / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "is truncated" in error_of(directory) and str(path) in error_of(directory)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path: Path, header: bytes, rest: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + rest)


def test_corrupted_headers(directory: Path) -> None:
    path = directory / "model.safetensors"
    header, rest = header_of(path)
    name = "model.norm.weight"
    begin, end = header[name]["data_offsets"]

    def damaged(entry: Any) -> str:
        write_header(path, json.dumps({**header, name: entry}).encode(), rest)
        return error_of(directory)

    good = header[name]
    assert "size of tensor 'model.norm.weight'" in damaged({**good, "shape": [49]})
    assert "size of tensor" in damaged({**good, "data_offsets": [end, begin]})
    assert "is truncated" in damaged({**good, "data_offsets": [2**40, 2**40 + end - begin]})
    assert "overlaps another" in damaged({**good, "data_offsets": [begin - 4, end - 4]})
    assert "entry of tensor" in damaged({"dtype": "F32"})
    assert "entry of tensor" in damaged(7)
    assert "tensor" in damaged({**good, "shape": [-48]})
    assert "is corrupted" in damaged({**good, "dtype": "X9"})
    write_header(path, b"{]", rest)
    assert "header is not JSON" in error_of(directory)
    write_header(path, b"[]", rest)
    assert "no JSON object" in error_of(directory)
    write_header(path, json.dumps(header).encode(), rest + b"more")
    assert "4 bytes after the last tensor" in error_of(directory)


def test_a_pointer_in_the_place_of_the_file(directory: Path) -> None:
    (directory / "model.safetensors").write_text(POINTER)
    assert "model.safetensors: is a pointer of Git LFS" in error_of(directory)


def test_tensors_that_nothing_reads_are_told_of(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Further blocks and biases: of a file that is read wrongly. Not buffers, nor a module behind the last block."""

    def opened(*names: str) -> list[str]:
        rewrite(directory, lambda there: there.update({name: some.clone() for name in names}))
        found = open_checkpoint(str(directory)).unread
        rewrite(directory, lambda there: drop(there, *names))
        return found

    some, block = torch.zeros(48), "model.layers.{}.{}"
    buffers = ("model.rotary_emb.inv_freq", block.format(0, "self_attn.rotary_emb.inv_freq"))
    module = [block.format(9, name) for name in ("eh_proj.weight", "enorm.weight", "mlp.up_proj.weight")]
    assert opened() == opened(*buffers) == opened(*module) == opened("visual.layers.0.up.weight") == []
    bias, more = block.format(1, "self_attn.q_proj.bias"), block.format(9, "input_layernorm.weight")
    assert opened(bias, more, *buffers) == [bias, more]
    rewrite(directory, lambda there: there.update({bias: some, more: some.clone()}))
    Models(str(directory), "cut", "auto", CpuBackend(CpuConfig()).load, Ops(), torch.device("cpu"), torch.float32)
    told = capsys.readouterr().err
    assert f"warning: {directory}: 2 tensors of blocks are not read, the first '{bias}'" in told


def test_missing_and_misshapen_tensors(directory: Path) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    rewrite(directory, lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    assert f"'{name}' has shape [80, 48], but the config asks for [48, 80]" in error_of(directory)
    rewrite(directory, lambda tensors: drop(tensors, name, "model.norm.weight"))
    assert f"'{name}' and 1 more are missing" in error_of(directory)


def test_head_must_be_there_unless_tied(directory: Path) -> None:
    rewrite(directory, lambda tensors: drop(tensors, "lm_head.weight"))
    assert "'lm_head.weight' is missing (config.json says tie_word_embeddings=false" in error_of(directory)
    edit(directory / "config.json", lambda config: config.update(tie_word_embeddings=True))
    assert "lm_head.weight" not in open_checkpoint(str(directory)).names()


def test_weights_that_are_no_floats(directory: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(directory, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    assert f"'{name}' is stored as I8" in error_of(directory)


@pytest.fixture
def sharded(original: Path, tmp_path: Path) -> Path:
    """Two shards and their index."""
    directory = tmp_path / "sharded"
    shutil.copytree(original, directory)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for shard, part in (("a.safetensors", names[:9]), ("b.safetensors", names[9:])):
        save_file({name: tensors[name] for name in part}, directory / shard)
        weight_map.update(dict.fromkeys(part, shard))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_index_that_does_not_fit_its_shards(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    open_checkpoint(str(sharded))
    edit(index, lambda value: value["weight_map"].update({"model.norm.weight": "a.safetensors"}))
    assert "'model.norm.weight' is listed in a.safetensors, which does not have it" in error_of(sharded)
    (sharded / "b.safetensors").unlink()
    edit(index, lambda value: value["weight_map"].update({"model.norm.weight": "b.safetensors"}))
    assert "shard b.safetensors is listed but missing" in error_of(sharded)
    edit(index, lambda value: value.pop("weight_map"))
    assert "no weight_map" in error_of(sharded)


@pytest.mark.parametrize(
    "shard", ["../tiny/model.safetensors", "/etc/passwd", "..", "", "sub/b.safetensors", 3, "..\\b"]
)
def test_shards_outside_the_directory_are_refused(shard: object, sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    edit(index, lambda value: value["weight_map"].update({"model.norm.weight": shard}))
    assert "not a file name within the directory" in error_of(sharded)


def test_several_files_without_an_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert "2 safetensors files (a.safetensors, b.safetensors) but no model.safetensors.index.json" in error_of(sharded)


def test_names_of_hub_snapshots(original: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--Some-Model" / "snapshots" / "0123abcd"
    shutil.copytree(original, snapshot)
    assert open_checkpoint(str(snapshot)).name == "Some-Model"
