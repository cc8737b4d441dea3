"""Results of a checkout say which code it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spec_sdk.source_commit import source_commit


def git(place: Path, *arguments: str) -> str:
    own = ["-c", "user.name=x", "-c", "user.email=x@y.z", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *own, *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_commit_and_whether_files_differ_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert source_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert source_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert source_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert source_commit(tmp_path) is None
