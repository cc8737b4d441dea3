"""``task=cache``: what is kept is listed with its size, and removed without touching what is not ours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_sdk.kept_files import DAY_S, REMOVED
from spec_sdk.model.source_cache import CacheEntry
from spec_sdk.tables import size


def toy_model() -> Path:
    """A converted model, made if it is not there."""

    def build(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"x" * 3000)

    return CacheEntry("toy-1", "toy", {"from": "test"}).obtain(build)


@pytest.fixture
def cache(own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One entry of every folder as its writer makes it, and beside each something of the user's."""
    root = own_directory / "cache"
    monkeypatch.setenv("SPEC_SDK_CACHE", str(root))
    toy_model()
    files = {
        "models/mine/model.safetensors": 500,
        "compiled/torch-2.13.0/a.pt2": 2048,
        "compiled/notes.txt": 10,
        "costs/0123.json": 100,
        "native/0123.so": 1000,
        "native/rows-0123.json": 24,
        "native/notes.txt": 10,
        "letters/to-my-aunt.txt": 10,
    }
    for name, nbytes in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * nbytes)
    (root / "native" / "link.so").symlink_to(root / "letters" / "to-my-aunt.txt")
    return root


def rows(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines() if " B " in line or "iB " in line]


def test_it_lists_what_everybody_keeps(cli: Callable[..., Any], cache: Path) -> None:
    result = cli("task=cache")
    assert result.status == 0, result.err
    assert str(cache) in result.out
    model = size(sum(file.stat().st_size for file in (cache / "models" / "toy-1").iterdir()))
    assert rows(result.out) == [
        "2.0 KiB today compiled: 1 folders of compiled passes",
        "100 B today costs: 1 cost curves",
        f"{model} today models: 1 converted models",
        f"{model} today toy-1",
        "1.0 KiB today native: 2 files of native kernels",
    ]
    assert all(len(line.rstrip()) <= 80 for line in result.out.splitlines())


def test_nothing_is_kept_yet(cli: Callable[..., Any], own_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_SDK_CACHE", str(own_directory / "none"))
    assert "0 B models: 0 converted models" in rows(cli("task=cache").out)
    assert cli("task=cache", "task.clean=all").out.endswith("0 B freed\n")
    assert not (own_directory / "none").exists()


def test_a_folder_is_emptied_of_what_is_ours(cli: Callable[..., Any], cache: Path) -> None:
    result = cli("task=cache", "task.clean=native")
    assert (result.status, result.out) == (0, f"removed 2 of native in {cache}: 1.0 KiB freed\n")
    assert sorted(path.name for path in (cache / "native").iterdir()) == ["link.so", "notes.txt"]
    assert (cache / "models" / "toy-1").is_dir() and (cache / "costs" / "0123.json").is_file()


def test_all_is_emptied_of_what_is_ours(cli: Callable[..., Any], cache: Path) -> None:
    killed = cache / "compiled" / f".torch-2.12.0{REMOVED}"
    killed.mkdir()
    result = cli("task=cache", "task.clean=all")
    assert result.status == 0 and "removed 6 of compiled, costs, models, native in" in result.out
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == [
        "compiled/notes.txt",
        "letters/to-my-aunt.txt",
        "models/.toy-1.lock",
        "models/mine/model.safetensors",
        "native/link.so",
        "native/notes.txt",
    ]
    # what was removed is made again
    assert (toy_model() / "model.safetensors").is_file()


def test_only_what_is_old(cli: Callable[..., Any], cache: Path) -> None:
    written = time.time() - 31 * DAY_S
    os.utime(cache / "costs" / "0123.json", (written, written))
    assert "31 days ago costs: 1 cost curves" in " ".join(cli("task=cache").out.split())
    result = cli("task=cache", "task.clean=all", "task.unchanged_days=30")
    assert "removed 1 of" in result.out and "100 B freed" in result.out
    assert (cache / "native" / "0123.so").is_file()


def test_bad_input_is_one_line(cli: Callable[..., Any], cache: Path) -> None:
    result = cli("task=cache", "task.clean=modells")
    assert (result.status, result.error) == (2, "task.clean: unknown folder 'modells', did you mean 'models'?")
    assert cli("task=cache", "task.unchanged_days=-1").status == 2
    assert cli("task=cache", "task.clean=letters").status == 2 and (cache / "letters" / "to-my-aunt.txt").is_file()


def test_a_package_may_keep_files_of_its_own(
    cli: Callable[..., Any], cache: Path, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from spec_sdk.hookspecs import hookimpl
    from spec_sdk.kept_files import KeptFiles
    from spec_sdk.tasks.cache import ShowCache

    kept = [KeptFiles("letters", "letters", ("*.txt",))]
    registry.register(SimpleNamespace(spec_sdk_kept_files=hookimpl(lambda: kept)), "post", "0")
    registry.register(ShowCache, "spec-sdk", "0")
    assert rows(cli("task=cache").out) == ["10 B today letters: 1 letters"]
