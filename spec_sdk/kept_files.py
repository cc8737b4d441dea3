"""What is kept between runs below the cache directory: whose files they are, how large, and how they are removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from spec_sdk.model.source_cache import cache_root

DAY_S = 86400
REMOVED = ".removed.tmp"
"""What the name of a directory ends with while it is being removed."""


@dataclass(frozen=True)
class KeptFiles:
    """One folder of the cache, as whoever writes it declares it (:func:`spec_sdk.hookspecs.spec_sdk_kept_files`).

    ``patterns`` are of the names that are written there; with ``proof`` an entry is a directory that holds this file.
    Nothing else in the folder is counted or removed: ``SPEC_SDK_CACHE`` may be any directory. ``what``
    names the files in the plural, and ``by_name`` whether each entry is shown.
    """

    folder: str
    what: str
    patterns: tuple[str, ...] = ("*",)
    proof: str = ""
    by_name: bool = False

    def entries(self, unchanged_days: float = 0) -> list[KeptEntry]:
        """What there is, by name; with ``unchanged_days`` only what nothing was written to for as long."""
        latest = time.time() - unchanged_days * DAY_S
        found = [KeptEntry.of(path) for path in self._paths()]
        return [entry for entry in found if not unchanged_days or entry.changed_at <= latest]

    def _paths(self) -> Iterator[Path]:
        place = cache_root() / self.folder
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            named = any(fnmatchcase(path.name, pattern) for pattern in self.patterns)
            ours = path.name.endswith(REMOVED) or named and (not self.proof or (path / self.proof).is_file())
            if ours and not path.is_symlink():
                yield path


@dataclass(frozen=True)
class KeptEntry:
    """A file or directory of the cache: its bytes, and when one of its files was last written (seconds, epoch)."""

    path: Path
    nbytes: int
    changed_at: float

    @classmethod
    def of(cls, path: Path) -> KeptEntry:
        inside = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
        stats = [file.lstat() for file in (inside if path.is_dir() else [path])] or [path.lstat()]
        return cls(path, sum(stat.st_size for stat in stats), max(stat.st_mtime for stat in stats))

    def remove(self) -> None:
        """Remove it, under a name nobody looks for from the first moment on. Raises OSError."""
        if not self.path.is_dir():
            self.path.unlink(missing_ok=True)
            return
        doomed = self.path.with_name(f".{self.path.name.lstrip('.').removesuffix(REMOVED)}{REMOVED}")
        self.path.rename(doomed)
        shutil.rmtree(doomed)
