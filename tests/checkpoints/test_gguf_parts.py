"""GGUF files in parts, as llama.cpp's gguf-split and the gguf package write them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import open_checkpoint
from tests.checkpoints.gguf_files import write_gguf


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three parts, and beside them the same in one file."""

    class Splitting(gguf.GGUFWriter):
        def __init__(self, path: Path, architecture: str) -> None:
            super().__init__(path, architecture, split_max_tensors=8)

    write_gguf(tmp_path / "whole.gguf")
    (tmp_path / "parts").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Splitting)
        write_gguf(tmp_path / "parts" / "m.gguf")
    found = sorted((tmp_path / "parts").glob("m-*.gguf"))
    assert len(found) == 3
    return found


@pytest.mark.parametrize("named", ["first", "last", "directory", "link"])
def test_all_of_it_is_read(named: str, parts: list[Path], tmp_path: Path) -> None:
    reference = {"first": parts[0], "last": parts[2], "directory": parts[0].parent}.get(named)
    if reference is None:
        # as the hub's cache has files
        (tmp_path / "linked").mkdir()
        for number, part in enumerate(parts):
            blob = part.rename(tmp_path / str(number))
            (tmp_path / "linked" / part.name).symlink_to(blob)
        reference = tmp_path / "linked" / parts[0].name
    whole, ours = open_checkpoint(str(tmp_path / "whole.gguf")), open_checkpoint(str(reference))
    assert ours.name == "m" and ours.config == whole.config and ours.names() == whole.names()
    assert all(torch.equal(ours.tensor(name), whole.tensor(name)) for name in whole.names())
    assert ours.tokenizer.encode("the quick fox") == whole.tokenizer.encode("the quick fox")


def test_another_part_is_another_model(parts: list[Path], tmp_path: Path) -> None:
    before = open_checkpoint(str(parts[0])).directory
    stamp = (before / "manifest.json").stat().st_mtime_ns
    assert open_checkpoint(str(parts[0])).directory == before
    assert (before / "manifest.json").stat().st_mtime_ns == stamp, "it was taken from the cache"
    shutil.copyfile(parts[2], tmp_path / "copy")
    (tmp_path / "copy").rename(parts[2])
    # also by a link with a name of its own
    (tmp_path / "latest.gguf").symlink_to(parts[0])
    assert open_checkpoint(str(tmp_path / "latest.gguf")).name == "latest"
    assert open_checkpoint(str(parts[0])).directory == before
    assert (before / "manifest.json").stat().st_mtime_ns > stamp


def test_a_missing_part(parts: list[Path]) -> None:
    parts[1].unlink()
    for named in (parts[2], parts[0].parent):
        with pytest.raises(UserError, match="is one of 3 parts, of which m-00002-of-00003.gguf is missing"):
            open_checkpoint(str(named))
    parts[0].unlink()
    for named in (parts[2], parts[0].parent):
        with pytest.raises(UserError, match="is one of 3 parts, of which m-00001-of-00003.gguf is missing"):
            open_checkpoint(str(named))


@pytest.mark.parametrize("name", ["m-00000-of-00000", "m-00001-of-00000", "q-00004-of-00003", "m-00002-of-00003"])
def test_a_whole_file_that_is_called_like_a_part(name: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / f"{name}.gguf"
    for hidden in (64, 128):
        # changed, it is another model
        write_gguf(path, hidden_size=hidden)
        for reference in (path, path.parent):
            assert open_checkpoint(str(reference)).config.hidden_size == hidden


def test_whole_files_that_are_called_like_parts_of_one(tmp_path: Path) -> None:
    paths = [tmp_path / f"z-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path, hidden in zip(paths, (64, 128), strict=True):
        write_gguf(path, hidden_size=hidden)
    assert [open_checkpoint(str(path)).config.hidden_size for path in paths] == [64, 128]
    with pytest.raises(UserError, match="holds 2 .gguf files, name one of them: z-00001-of-00002.gguf, z-00002"):
        open_checkpoint(str(tmp_path))


def test_a_part_in_another_ones_place(parts: list[Path]) -> None:
    shutil.copyfile(parts[2], parts[1])
    with pytest.raises(UserError, match="m-00002-of-00003.gguf: is not part 2 of 3"):
        open_checkpoint(str(parts[0]))


def test_a_part_under_another_name(parts: list[Path]) -> None:
    renamed = parts[0].rename(parts[0].with_name("renamed.gguf"))
    with pytest.raises(UserError, match="says that it is one of 3 parts; .* NAME-00001-of-00003.gguf"):
        open_checkpoint(str(renamed))


def change(path: Path, key: str, value: Any) -> None:
    """Give one of its metadata another value, in place."""
    field = gguf.GGUFReader(path, "r+").fields[key]
    field.parts[field.data[0]][0] = value


def test_parts_that_are_not_all(parts: list[Path]) -> None:
    change(parts[0], "split.tensors.count", 7)
    with pytest.raises(UserError, match="its parts have 2. tensors, not 7"):
        open_checkpoint(str(parts[0]))


def test_parts_of_two_files(parts: list[Path]) -> None:
    shutil.copyfile(parts[0], parts[0].with_name("other-00001-of-00003.gguf"))
    with pytest.raises(UserError, match="holds 2 .gguf files, name one of them: m-00001-of-00003.gguf, other-00001"):
        open_checkpoint(str(parts[0].parent))
