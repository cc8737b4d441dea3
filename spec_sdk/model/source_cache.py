"""The per-user cache of converted models: whole or absent, safe between processes, and checked on every use.

An entry is a directory with a manifest (size, modification time and SHA-256 of each file, and what it was made from).
It is made beside its place and renamed into it, under a lock that dies with its process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from spec_sdk.errors import UserError
from spec_sdk.files import write_json
from spec_sdk.say import say

MANIFEST = "manifest.json"
_FORMAT = 1


def cache_root() -> Path:
    """``$SPEC_SDK_CACHE``, else ``$XDG_CACHE_HOME/spec-sdk``, else ``~/.cache/spec-sdk``."""
    own, xdg = os.environ.get("SPEC_SDK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    return (Path(xdg) if xdg else Path.home() / ".cache") / "spec-sdk"


@dataclass(frozen=True)
class CacheEntry:
    """A converted model. ``source`` is compared with what the entry was made from; ``label`` names it to people."""

    name: str
    label: str
    source: Mapping[str, Any]

    @property
    def directory(self) -> Path:
        return cache_root() / "models" / self.name

    def find(self) -> Path | None:
        """The entry's directory if it is there and sound; None otherwise. Changes nothing but stale time stamps."""
        try:
            return self.directory if self._fault() is None else None
        except OSError as error:
            raise _explain(error, self.label) from error

    def obtain(self, build: Callable[[Path], None]) -> Path:
        """The entry's directory; if it is absent, outdated or damaged, made anew by ``build(empty directory)``.

        Of several processes one builds and the others wait. Raises UserError if the disk is full or cannot be written,
        leaving nothing behind, and whatever ``build`` raises.
        """
        found = self.find()
        if found is not None:
            return found
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            with one_process(_lock_file(self.directory.parent, self.name), self._say_it_waits):
                self._remove_leftovers()
                fault = self._fault()
                if fault is not None:
                    if fault:
                        say(f"the cached {self.label} {fault}: converting it anew")
                    self._build(build)
        except OSError as error:
            raise _explain(error, self.label) from error
        return self.directory

    def _say_it_waits(self) -> None:
        say(f"another process is preparing {self.label}: waiting for it")

    def _build(self, build: Callable[[Path], None]) -> None:
        temporary = self._temporary()
        temporary.mkdir()
        try:
            build(temporary)
            files = {path.name: _stamp(path) | {"sha256": _sha256(path)} for path in sorted(temporary.iterdir())}
            write_json(temporary / MANIFEST, {"format": _FORMAT, "source": dict(self.source), "files": files})
            if self.directory.exists():
                # os.rename cannot replace a directory that is not empty
                self.directory.rename(self._temporary())
            temporary.rename(self.directory)
        finally:
            self._remove_leftovers()

    def _temporary(self) -> Path:
        return self.directory.parent / f".{self.name}.{secrets.token_hex(4)}.tmp"

    def _remove_leftovers(self) -> None:
        """Remove what this or a killed process left half-made. Only under the lock.

        Of other entries too, unless another process is making them.
        """
        for path in self.directory.parent.glob(".*.tmp"):
            name = path.name.rsplit(".", 2)[0].removeprefix(".")
            if name == self.name:
                shutil.rmtree(path)
                continue
            with contextlib.suppress(Timeout), FileLock(_lock_file(path.parent, name)).acquire(timeout=0):
                shutil.rmtree(path)

    def _fault(self) -> str | None:
        """Why the entry cannot be used: None if it can, "" if it is not there, else a phrase for the user."""
        if not self.directory.is_dir():
            return ""
        manifest = _read_manifest(self.directory / MANIFEST)
        if manifest is None:
            return "is damaged (manifest)"
        if manifest["source"] != dict(self.source):
            return "is outdated (its source has changed)"
        restamped = False
        for name, recorded in manifest["files"].items():
            path = self.directory / name
            if not path.is_file():
                return f"is damaged ({name} is missing)"
            stamp = _stamp(path)
            if stamp == {key: recorded[key] for key in stamp}:
                continue
            if stamp["size"] != recorded["size"] or _sha256(path) != recorded["sha256"]:
                return f"is damaged ({name} is not what was written)"
            recorded |= stamp
            restamped = True
        if restamped:
            # a read-only cache is hashed at each use instead
            with contextlib.suppress(OSError):
                write_json(self.directory / MANIFEST, manifest)
        return None


@contextlib.contextmanager
def one_process(lock_file: Path, wait: Callable[[], None] = lambda: None, longest_s: float = -1.0) -> Iterator[None]:
    """Hold ``lock_file``, which one process at a time does; ``wait`` is called once if another one has it.

    After ``longest_s`` seconds (-1: never), and where there can be no lock, this process goes on without it. Within it
    the same thread may hold it again.
    """
    lock = FileLock(lock_file, is_singleton=True)
    with contextlib.suppress(OSError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            wait()
            lock.acquire(timeout=longest_s)
    try:
        yield
    finally:
        lock.release()


def _lock_file(models: Path, name: str) -> Path:
    """Held by the process that makes the entry ``name``."""
    return models / f".{name}.lock"


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest, or None if it is missing or not one."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    well_formed = (
        isinstance(manifest, dict)
        and manifest.get("format") == _FORMAT
        and isinstance(manifest.get("source"), dict)
        and isinstance(manifest.get("files"), dict)
        and bool(manifest["files"])
        and all(
            name == Path(name).name and isinstance(recorded, dict) and {"size", "mtime_ns", "sha256"} <= set(recorded)
            for name, recorded in manifest["files"].items()
        )
    )
    return manifest if well_formed else None


def _stamp(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _explain(error: OSError, label: str) -> UserError:
    root = cache_root()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"no space left for {label} in {root}; free some, or set SPEC_SDK_CACHE to a directory with more room"
        )
    return UserError(
        f"the model cache {root} cannot be used ({error.strerror or error}); set SPEC_SDK_CACHE to a directory of yours"
    )
