"""What ``task.method`` chooses: what is made of a target, and what it learns from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.executor import Executor
from spec_sdk.training.learner import Learner
from spec_sdk.training.sample_shards import SampleShards
from spec_sdk.training.samples import Sample


class TrainingMethod(ABC):
    """``thing``, ``untrained``: what is trained in words, in the end and at first. ``pipeline``: one that uses it, by
    ``option``. ``init_from``: what was trained before, if it is that which it begins as.
    """

    thing: str
    untrained: str
    pipeline: str
    option: str
    init_from: str | None = None

    @property
    @abstractmethod
    def origin(self) -> str:
        """A line on what it begins as."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """What a training follows from beside the options of all methods, as plain data."""

    def prepare(self, shards: SampleShards, target: Callable[[], Executor], tell: Callable[[str], None]) -> None:
        """Make of the answers what is learned from besides; nothing by default. ``target``: loads it."""
        return None

    def samples(self, shards: SampleShards, tell: Callable[[str], None]) -> list[Sample]:
        """What there is to learn from. Raises UserError for what :meth:`prepare` should have made."""
        return list(shards.read())

    @abstractmethod
    def learner(self, device: torch.device, precision: torch.dtype, token_R: torch.Tensor | None) -> Learner:
        """What is trained on :meth:`samples`. ``token_R``: the tokens that it can draft; None for all."""

    @abstractmethod
    def write(self, directory: Path, model: Learner, token_R: torch.Tensor | None) -> None:
        """``token_R``: the tokens that it drafts, of those that it learned; None for all. Raises OSError."""

    @abstractmethod
    def facts(self, parameters: int, size: str) -> Mapping[str, str]:
        """What the model card says of it."""
