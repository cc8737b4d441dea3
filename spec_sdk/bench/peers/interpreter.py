"""Which Python a peer runs in."""

from __future__ import annotations

import os
import shutil
import sys


def found(python: str | None) -> str:
    """The interpreter's absolute path where it can be found from here, since a worker starts in another directory.

    None: this one.
    """
    if python is None:
        return sys.executable
    path = shutil.which(os.path.expanduser(python))
    return python if path is None else os.path.abspath(path)
