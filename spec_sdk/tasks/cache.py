"""``task=cache``: what is kept between runs, how large it is, and its removal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.kept_files import DAY_S, KeptEntry, KeptFiles
from spec_sdk.model.source_cache import MANIFEST, cache_root
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.tables import print_table, size

ALL = "all"
OWN = (
    KeptFiles("models", "converted models", proof=MANIFEST, by_name=True),
    KeptFiles("compiled", "folders of compiled passes", patterns=("torch-*",)),
    KeptFiles("costs", "cost curves", patterns=("*.json",)),
)


@dataclass
class CacheConfig:
    """Options of ``task=cache``."""

    clean: str | None = option(None, "the folder to empty, or all of them", means={None: "list them", ALL: "every one"})
    unchanged_days: float = option(0.0, "empty it only of what nothing was written to for as long", minimum=0)


class ShowCache(Task):
    """Lists what is kept between runs, with sizes, and removes it (``task.clean``)."""

    name = "cache"
    computes = False
    Config = CacheConfig
    config: CacheConfig

    def run(self, app: Settings) -> int:
        """Print a table, or what was removed, to stdout; return 0. Raises UserError for a folder that nobody keeps."""
        folders = Registry.discover().hook.spec_sdk_kept_files()
        kept = sorted((folder for each in folders for folder in each), key=lambda folder: folder.folder)
        try:
            if self.config.clean is not None:
                print(_clean(_chosen(kept, self.config.clean), self.config.unchanged_days))
            else:
                _show(kept)
        except OSError as error:
            raise UserError(f"{error.filename or cache_root()}: {error.strerror or error}") from error
        return 0


def _chosen(kept: Sequence[KeptFiles], name: str) -> Sequence[KeptFiles]:
    chosen = [folder for folder in kept if name in (folder.folder, ALL)]
    if not chosen:
        raise UserError(f"task.clean: unknown folder {name!r}{did_you_mean(name, [f.folder for f in kept] + [ALL])}")
    return chosen


def _clean(kept: Sequence[KeptFiles], unchanged_days: float) -> str:
    entries = [entry for folder in kept for entry in folder.entries(unchanged_days)]
    for entry in entries:
        entry.remove()
    freed = size(sum(entry.nbytes for entry in entries))
    return f"removed {len(entries)} of {', '.join(folder.folder for folder in kept)} in {cache_root()}: {freed} freed"


def _show(kept: Sequence[KeptFiles]) -> None:
    rows = []
    for folder in kept:
        entries = folder.entries()
        rows.append(_row(f"{folder.folder}: {len(entries)} {folder.what}", entries))
        rows += [_row(f"  {entry.path.name}", [entry]) for entry in entries if folder.by_name]
    print(cache_root())
    print_table("", ["size", "last written", "what"], rows, file=sys.stdout, numbers=False)


def _row(name: str, entries: Sequence[KeptEntry]) -> list[str]:
    days = (time.time() - max(entry.changed_at for entry in entries)) / DAY_S if entries else None
    last = "" if days is None else f"{days:.0f} days ago" if days >= 1 else "today"
    return [size(sum(entry.nbytes for entry in entries)), last, name]
