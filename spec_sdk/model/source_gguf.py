"""A user's own GGUF file as a model: converted once, the file itself left alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from spec_sdk.model.gguf_convert import CONVERTER_VERSION, convert_gguf
from spec_sdk.model.gguf_parts import parts_of, whole_name
from spec_sdk.model.source_cache import CacheEntry


def converted_gguf(path: Path) -> Path:
    """A Hugging Face-layout directory made from the GGUF file ``path``, from the cache if no part of it has changed.

    Raises UserError for a file that cannot be used or a full disk.
    """
    entry, place = gguf_entry(path, "", {"converter": CONVERTER_VERSION})
    return entry.obtain(lambda directory: convert_gguf(place, directory, path.name))


def gguf_entry(path: Path, kind: str, version: Mapping[str, int]) -> tuple[CacheEntry, Path]:
    """The place in the cache of what is made from a GGUF file, and the file itself.

    ``kind``: what the entry's name begins with; ``version``: part of what it is made from.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", whole_name(path))[:80]
    # behind a link, as the hub's cache has it, names may say nothing of parts
    place = path.absolute() if len(parts_of(path)) > 1 else path.resolve()
    name = f"{kind}{stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    stats = [part.stat() for part in parts_of(place) if part.exists()]
    source = {
        "path": str(place),
        "parts": [[stat.st_size, stat.st_mtime_ns] for stat in stats],
        **version,
    }
    return CacheEntry(name, path.name, source), place
