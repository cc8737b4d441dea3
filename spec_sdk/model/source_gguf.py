"""A user's own GGUF file as a model: converted once, the file itself left alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from spec_sdk.model.gguf_convert import CONVERTER_VERSION, convert_gguf
from spec_sdk.model.source_cache import CacheEntry


def converted_gguf(path: Path) -> Path:
    """A Hugging Face-layout directory made from the GGUF file ``path``, from the cache if the file has not changed.

    Raises UserError for a file that cannot be used or a full disk.
    """
    path = path.resolve()
    stat = path.stat()
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem)[:80]
    name = f"{stem}-{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    source = {
        "path": str(path),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "converter": CONVERTER_VERSION,
    }
    entry = CacheEntry(name, path.name, source)
    return entry.obtain(lambda directory: convert_gguf(path, directory, path.name))
