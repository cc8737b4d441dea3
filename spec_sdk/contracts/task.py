"""The contract of a task: what ``task=…`` runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from spec_sdk.plugin import Plugin


class Task(Plugin, ABC):
    """What ``task=…`` runs. Receives the resolved, validated application config.

    ``computes``: it makes the run's backend; False for one that only looks at files.
    ``every_rank``: it runs on every rank of a launched run; otherwise a launcher with several processes is refused.
    ``without``: options of the run that it does nothing with, of ``compare``, ``constraint``, ``error_bounds``,
    ``prompt``, ``prompt_file`` and ``audio``. A run that gives one is refused.
    """

    kind = "task"
    computes: ClassVar[bool] = True
    every_rank: ClassVar[bool] = False
    without: ClassVar[Sequence[str]] = ()

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def run(self, app: Any) -> int:
        """Do the work; return the exit status. ``app`` is the :class:`spec_sdk.settings.Settings` of this run."""
