"""What a mutant is: one wrong line or two in one file, and the tests that are to fail over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = "plugins/backends/spec_sdk_backends/native/library.py"


@dataclass(frozen=True)
class Mutant:
    """``file``, relative to the repository, with its only occurrence of ``old`` replaced by ``new``.

    ``killers``: test files or node ids of ``make test``, the quickest first, one of which must fail.
    """

    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]

    @property
    def module(self) -> str:
        """What Python imports of it: ``file``, or what compiles that."""
        return self.file if self.file.endswith(".py") else KERNELS

    def patched(self, source: str) -> str:
        """Raises ValueError unless ``old`` occurs exactly once in ``source``."""
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name!r}: its old text occurs {source.count(self.old)} times in {self.file}")
        return source.replace(self.old, self.new)
