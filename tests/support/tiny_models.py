"""A target and a draft model in memory, for drafters."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.executor import Executor
from spec_sdk.model.models import Model, Models
from spec_sdk.ops import Ops
from tests.support.tiny_decoder import tiny_executor


class TinyModels(Models):
    """What a drafter is given, with tiny random models in place of checkpoints."""

    def __init__(self, target: Executor | None = None, draft: Executor | None = None) -> None:
        no_tokenizer: Any = None
        self.ops = Ops()
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.target = Model("tiny target", target or tiny_executor("smollm", 0), no_tokenizer)
        self._draft = Model("tiny draft", draft or tiny_executor("smollm", 1), no_tokenizer)

    def draft(self, reference: str | None = None) -> Model:
        return self._draft
