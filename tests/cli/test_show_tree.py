"""``task=show_tree`` on a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_checkpoints import write_checkpoint


def test_trees_are_printed_and_drawn(cli: Callable[..., Any], own_directory: Path) -> None:
    (own_directory / "model").mkdir()
    write_checkpoint(own_directory / "model")
    arguments = [
        "task=show_tree",
        "pipeline=easyspec_paper",
        "model.target=model",
        "prompt=a b c",
        "max_new_tokens=30",
        "output_dir=out",
    ]
    result = cli(*arguments, "ignore_eos=true", "task.cycles=2", "drafter.width=3")
    assert result.status == 0
    assert result.out.count("cycle ") == 2 and "16 nodes, depth 5" in result.out
    assert sorted(path.name for path in (own_directory / "out").iterdir()) == ["tree-1.svg", "tree-2.svg"]


def test_bad_cycles_are_refused(cli: Callable[..., Any]) -> None:
    result = cli("task=show_tree", "task.cycles=0", "prompt=a")
    assert result.status == 2 and result.error == "task.cycles: 0 must be 1 or more"
