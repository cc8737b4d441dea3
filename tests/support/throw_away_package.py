"""A package of one module, with the metadata of an installed one."""

from __future__ import annotations

from pathlib import Path


def write_package(place: Path, name: str, code: str, **others: str) -> None:
    """The package ``name`` below ``place``, whose ``__init__.py`` is ``code``; ``others``: its other modules."""
    package, about = place / name, place / f"{name}-1.0.dist-info"
    for directory in (package, about):
        directory.mkdir(parents=True)
    for module, text in {"__init__": code, **others}.items():
        (package / f"{module}.py").write_text(text)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[spec_sdk]\n{name} = {name}\n")
