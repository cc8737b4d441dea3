"""What a rank reads of a checkpoint, and how much memory that takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.safetensors_reader import SafetensorsFile
from spec_sdk.model.shards import ShardedSource
from spec_sdk.model.tensor_parallel import load_shard
from spec_sdk.ops.quantized import QuantizedMatrix
from spec_sdk.ops.quantizing import quantize
from spec_sdk_backends.cpu import CpuBackend, CpuConfig
from tests.distributed.support import end, start, work
from tests.support.tiny_checkpoints import write_checkpoint
from tests.support.tiny_ranks import ranks_at

BAD_INPUT, SOON_S = 2, 60
LARGER = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
}


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The bytes that were read of files since it was asked last: those of parts, and of tensors taken as a whole."""
    read, preadv, whole = [0], os.preadv, SafetensorsFile.tensor

    def counting_preadv(*arguments: Any) -> int:
        count = preadv(*arguments)
        read[0] += count
        return count

    def counting_tensor(self: SafetensorsFile, name: str) -> torch.Tensor:
        tensor = whole(self, name)
        read[0] += tensor.numel() * tensor.element_size()
        return tensor

    monkeypatch.setattr(os, "preadv", counting_preadv)
    monkeypatch.setattr(SafetensorsFile, "tensor", counting_tensor)

    def since() -> int:
        count, read[0] = read[0], 0
        return count

    return since


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["llama2", "smollm", "qwen3_moe", "biased_llama"])
def test_a_rank_reads_its_shard_and_nothing_else(
    name: str, size: int, bytes_read: Callable[[], int], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, name, **{**LARGER, "num_key_value_heads": 8 if name == "llama2" else 4})
    checkpoint = open_checkpoint(str(tmp_path))
    table = weights_of(checkpoint.config)
    split = {key for key in table.shapes if table.entry(key).row.split is not None}
    numbers = {key: torch.Size(shape).numel() * 4 for key, shape in table.shapes.items()}
    on_all = sum(numbers[key] for key in numbers if key not in split)
    of_one = sum(numbers[key] for key in split) // size
    if checkpoint.config.tie_embeddings:
        of_one += numbers[table.name("embedding")] // size
    backend = CpuBackend(CpuConfig(pack_weights=False))
    bytes_read()
    for rank in range(size):
        place = ranks_at(rank, size)
        load_shard(checkpoint, place, place, backend.load, torch.float32)
        after_sum = 0 if rank == 0 else sum(numbers[key] for key in numbers if table.entry(key).row.after_sum)
        assert bytes_read() == on_all + of_one - after_sum


def test_a_matrix_that_is_to_be_in_few_bits_is_read_by_the_rank_s_part(
    bytes_read: Callable[[], int], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "smollm", **LARGER)
    checkpoint = open_checkpoint(str(tmp_path))
    table, place = weights_of(checkpoint.config), ranks_at(1, 2)
    chosen = ChosenWeights(checkpoint, "int8", lambda stored: False)
    source = ShardedSource(chosen, place, place)
    bytes_read()
    for role, axis in (("q", 0), ("down", 1)):
        name = table.name(role)
        whole, part = chosen.quantized(name), None
        assert bytes_read() == torch.Size(table.shape(role)).numel() * 4
        part = source.quantized(name)
        assert bytes_read() == torch.Size(table.shape(role)).numel() * 2
        assert whole is not None and part is not None
        half = table.shape(role)[axis] // 2
        same = whole.rows(slice(half, None)) if axis == 0 else whole.columns(half, 2 * half)
        assert torch.equal(part.codes_OC, same.codes_OC) and torch.equal(part.scale_OG, same.scale_OG)


@pytest.fixture(params=[4, 8])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Checkpoint, str, QuantizedMatrix]]:
    """A checkpoint that stores one matrix in few bits, its name, and the matrix."""
    write_checkpoint(tmp_path, "smollm", **LARGER)
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    tensors = load_file(path)
    matrix = quantize(tensors.pop(name), request.param)
    parts = {"codes": matrix.codes_OC, "scale": matrix.scale_OG}
    if matrix.offset_OG is not None:
        parts["offset"] = matrix.offset_OG
    save_file({**tensors, **{f"{name}.{part}": tensor for part, tensor in parts.items()}}, path)
    yield open_checkpoint(str(tmp_path)), name, matrix


@pytest.mark.parametrize(("axis", "first", "end"), [(0, 32, 96), (1, 64, 224)])
def test_parts_of_a_matrix_stored_in_few_bits(
    axis: int, first: int, end: int, stored: tuple[Checkpoint, str, QuantizedMatrix], bytes_read: Callable[[], int]
) -> None:
    checkpoint, name, matrix = stored
    expected = matrix.rows(slice(first, end)) if axis == 0 else matrix.columns(first, end)
    bytes_read()
    found = checkpoint.quantized_part(name, axis, first, end)
    assert bytes_read() == expected.nbytes
    assert found is not None and torch.equal(found.codes_OC, expected.codes_OC)
    floats = expected.dequantized(torch.float32)
    assert torch.equal(found.dequantized(torch.float32), floats)
    assert torch.equal(checkpoint.part(name, axis, first, end), floats)
    assert checkpoint.quantized_part(name, 1, 16, 64) is None


def test_a_file_that_is_torn_while_it_is_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama2")
    checkpoint = open_checkpoint(str(tmp_path))
    with (tmp_path / "model.safetensors").open("rb+") as file:
        file.truncate(4096)
    with pytest.raises(UserError, match=r"model\.safetensors: is truncated: it had byte \d+ when it was opened"):
        checkpoint.part("model.layers.4.mlp.down_proj.weight", 0, 0, 48)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_parts_of_experts_that_transformers_left_in_one_tensor(
    name: str, bytes_read: Callable[[], int], tmp_path: Path
) -> None:
    model = write_checkpoint(tmp_path, name)
    model.save_pretrained(tmp_path, save_original_format=False)
    checkpoint = open_checkpoint(str(tmp_path))
    table = weights_of(checkpoint.config)
    for role in ("expert_gate", "expert_up", "expert_down"):
        key = table.name(role, 2, 3)
        whole = checkpoint.tensor(key)
        bytes_read()
        assert torch.equal(checkpoint.part(key, 0, 5, 11), whole[5:11])
        assert torch.equal(checkpoint.part(key, 1, 3, 20), whole[:, 3:20])
        assert bytes_read() == 4 * (6 * whole.shape[1] + 17 * whole.shape[0])


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_never_holds_more_than_its_shard_and_a_few_matrices(size: int, tmp_path: Path) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 4096}
    write_checkpoint(tmp_path / "model", "llama2", **shape, num_attention_heads=8, num_key_value_heads=8)
    whole = sum(path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors"))
    # a plain copy of gate and up, which are one matrix, and two of it that packing makes
    in_passing = 3 * 2 * 4096 * 1024 * 4 // size + 2**24
    for peak, shard in work(size, [["loading_memory", str(tmp_path / "model")]], tmp_path)[0]:
        assert peak < shard + in_passing < whole


def ends_in_one_line(processes: list[subprocess.Popen[str]]) -> str:
    """The one line of a run that bad input ends: every rank has its status, and soon."""
    began = time.monotonic()
    ended = end(processes)
    assert time.monotonic() - began < SOON_S
    assert [status for status, _, _ in ended] == [BAD_INPUT] * len(processes)
    begins, *lines = [line for _, _, err in ended for line in err.splitlines()]
    assert begins.startswith("spec-sdk ") and len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


DAMAGE = ["a missing file", "a torn file", "another shape"]


@pytest.mark.parametrize(
    "everywhere",
    [pytest.param(True, marks=pytest.mark.full, id="on all machines"), pytest.param(False, id="on one machine")],
)
@pytest.mark.parametrize("damage", [DAMAGE[0], *(pytest.param(name, marks=pytest.mark.full) for name in DAMAGE[1:])])
def test_a_damaged_checkpoint_ends_all_ranks_in_one_line(damage: str, everywhere: bool, tmp_path: Path) -> None:
    """Each rank has a disk of its own: a directory in which it runs."""
    places = [tmp_path / "first", tmp_path / "last"]
    model = write_checkpoint(tmp_path / "model", "llama2")
    model.save_pretrained(tmp_path / "model", max_shard_size="200KB")
    for place in places:
        shutil.copytree(tmp_path / "model", place / "model")
    for place in places if everywhere else places[1:]:
        path = sorted((place / "model").glob("model-*.safetensors"))[1]
        if damage == "a missing file":
            path.unlink()
        elif damage == "a torn file":
            path.write_bytes(path.read_bytes()[:-100])
        else:
            tensors = load_file(path)
            name = next(name for name, tensor in tensors.items() if tensor.dim() == 2)
            save_file({**tensors, name: tensors[name][:-1].contiguous()}, path)
    command = ["-m", "spec_sdk", "model.target=./model", "prompt=a b c", "max_new_tokens=4"]
    line = ends_in_one_line(start(2, command, places))
    says = {"a missing file": "is listed but missing", "a torn file": "is truncated", "another shape": "has shape"}
    assert says[damage] in line
