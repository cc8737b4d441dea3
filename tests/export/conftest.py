"""One target for all exports of a test's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_sdk.model.target_ends import TargetEnds
from tests.export.exports import ends_of, write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("targets") / "target")


@pytest.fixture(scope="session")
def ends(target: Path) -> TargetEnds:
    return ends_of(target)
