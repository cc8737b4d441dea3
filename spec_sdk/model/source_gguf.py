"""A user's own GGUF file as a model: converted once, the file itself left alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from spec_sdk.model.gguf_convert import CONVERTER_VERSION, convert_gguf
from spec_sdk.model.gguf_parts import parts_of, whole_name
from spec_sdk.model.source_cache import CacheEntry


def converted_gguf(path: Path) -> Path:
    """A Hugging Face-layout directory made from the GGUF file ``path``, from the cache if no part of it has changed.

    Raises UserError for a file that cannot be used or a full disk.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", whole_name(path))[:80]
    # behind a link, as the hub's cache has it, names may say nothing of parts
    place = path.absolute() if len(parts_of(path)) > 1 else path.resolve()
    name = f"{stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    stats = [part.stat() for part in parts_of(place) if part.exists()]
    source = {
        "path": str(place),
        "parts": [[stat.st_size, stat.st_mtime_ns] for stat in stats],
        "converter": CONVERTER_VERSION,
    }
    entry = CacheEntry(name, path.name, source)
    return entry.obtain(lambda directory: convert_gguf(place, directory, path.name))
