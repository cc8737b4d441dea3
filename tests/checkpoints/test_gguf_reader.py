"""A GGUF file that is cut short or garbled is one clear line, wherever the damage is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from spec_sdk.model.gguf_reader import GGUFFile
from tests.checkpoints.gguf_files import write_gguf
from tests.support.lfs_pointer import POINTER


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, kind="Q8_0")
    return path.read_bytes()


def test_agrees_with_the_gguf_package(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    ours, theirs = GGUFFile(path), GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert ours.shapes[tensor.name] == tuple(reversed(tensor.shape.tolist()))
        assert ours.tensors[tensor.name].kind == tensor.tensor_type.name
        assert bytes(ours.raw(tensor.name)) == tensor.data.tobytes()


def damaged(path: Path, data: bytes) -> str:
    """The error of opening ``data``: one line that names the file."""
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        open_checkpoint(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_truncated(share: float, tmp_path: Path, whole: bytes) -> None:
    assert "truncated" in damaged(tmp_path / "m.gguf", whole[: int(len(whole) * share)])


def test_bad_magic_version_and_byte_order(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    assert "bad magic" in damaged(path, b"GGML" + whole[4:])
    assert "GGUF version 1;" in damaged(path, whole[:4] + struct.pack("<I", 1) + whole[8:])
    assert "big-endian" in damaged(path, whole[:4] + struct.pack(">I", 3) + whole[8:])


def test_a_pointer_in_the_place_of_the_file(tmp_path: Path) -> None:
    assert "is a pointer of Git LFS" in damaged(tmp_path / "m.gguf", POINTER.encode())


def test_absurd_counts_and_offsets(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    assert "claims 4611686018427387904 tensors" in damaged(path, whole[:8] + struct.pack("<Q", 2**62) + whole[16:])
    assert "metadata entries" in damaged(path, whole[:16] + struct.pack("<Q", 2**62) + whole[24:])
    at = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    assert "array of" in damaged(path, whole[:at] + struct.pack("<Q", 2**60) + whole[at + 8 :])
    name = b"blk.1.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 16 + 4
    assert "ends at byte" in damaged(path, whole[:at] + struct.pack("<Q", 2**62) + whole[at + 8 :])
    assert "unknown GGML type 77" in damaged(path, whole[: at - 4] + struct.pack("<I", 77) + whole[at:])
    assert "dimensions" in damaged(path, whole[: at - 24] + struct.pack("<I", 2**31) + whole[at - 20 :])
    assert "blocks" in damaged(path, whole[: at - 20] + struct.pack("<Q", 3) + whole[at - 12 :])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_the_header_gets_past_as_another_exception(
    data: st.DataObject, tmp_path: Path, whole: bytes
) -> None:
    header = whole.index(b"output_norm.weight")
    at = data.draw(st.integers(0, header))
    noise = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    try:
        GGUFFile(path)
    except UserError as error:
        assert str(path) in str(error)
