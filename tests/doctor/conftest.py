"""The command line in this process, as tests/cli has it."""

from __future__ import annotations

from tests.cli.conftest import cli, own_directory

__all__ = ["cli", "own_directory"]
