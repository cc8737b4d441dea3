"""A model that is to be loaded."""

from __future__ import annotations

from typing import Protocol

from spec_sdk.model.decoder import TensorSource
from spec_sdk.model.tokenizer import Tokenizer


class ModelSource(TensorSource, Protocol):
    """A model to be loaded: its weights, its tokenizer, and a label for reports. A checkpoint, or one in memory."""

    name: str

    @property
    def tokenizer(self) -> Tokenizer: ...

    def within(self, context: int) -> ModelSource: ...
