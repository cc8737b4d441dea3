"""What installed packages declare is looked through once, and again when something is installed or taken away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spec_sdk import installed


def install(place: Path, name: str) -> None:
    about = place / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[spec_sdk]\n{name} = {name}\n")


def others() -> list[str]:
    return [entry.name for entry in installed.entries_of_others() if entry.name.startswith("tried_")]


def test_a_package_is_seen_from_when_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert others() == []
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert others() == []
        install(tmp_path, "tried_one")
        # a clock of coarse steps may show no difference between two changes of a directory
        os.utime(tmp_path, ns=(1, 1))
        assert others() == ["tried_one"]
        install(tmp_path, "tried_two")
        os.utime(tmp_path, ns=(2, 2))
        assert others() == ["tried_one", "tried_two"]
    assert others() == []


def test_what_did_not_change_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = installed.entries()

    def refuse(group: str) -> None:
        raise AssertionError(f"{group} is looked for again")

    monkeypatch.setattr(installed, "entry_points", refuse)
    assert installed.entries() == before
