"""The contract of a backend: where tensors live and which kernels run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from spec_sdk.plugin import Plugin
from spec_sdk.ops import Ops
from spec_sdk.ranks import ALONE, Ranks


class Backend(Plugin, ABC):
    """Where tensors live and which kernels run."""

    kind = "backend"

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def ops(self) -> Ops: ...

    @abstractmethod
    def describe(self) -> str:
        """The machine in a few words, for reports: CPU or GPU name, cores or memory."""

    @property
    def ranks(self) -> Ranks:
        """The processes that compute together: the device group that holds the target. This one alone by default."""
        return ALONE

    def synchronize(self) -> None:
        """Wait for queued work, so that a clock read means something."""
