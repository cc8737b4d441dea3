"""Which code ran, where the version does not say it: the commit of a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LONGEST_S = 5.0


def source_commit(checkout: Path = CHECKOUT) -> str | None:
    """The commit of the git checkout that this runs from, with ``-dirty`` behind it where files differ from it. None
    for an installed package, and where git does not answer.
    """
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
