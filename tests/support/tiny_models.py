"""A target and a draft model in memory, for drafters."""

from __future__ import annotations

from typing import Any

import torch

from spec_sdk.model.decoder import Decoder
from spec_sdk.model.models import Model, Models
from spec_sdk.model.torch_executor import TorchExecutor
from spec_sdk.ops import Ops
from spec_sdk.ranks import ALONE, Ranks
from tests.support.tiny_decoder import tiny_decoder


class TinyModels(Models):
    """What a drafter is given, with tiny random decoders in place of checkpoints."""

    def __init__(self, target: Decoder | None = None, draft: Decoder | None = None) -> None:
        no_tokenizer: Any = None
        self.ops = Ops()
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        target_executor = TorchExecutor(target or tiny_decoder("smollm", 0), self.ops)
        draft_executor = TorchExecutor(draft or tiny_decoder("smollm", 1), self.ops)
        self.target = Model("tiny target", target_executor, no_tokenizer)
        self._heads = {}
        self._kv_cache = "auto"
        self._draft = Model("tiny draft", draft_executor, no_tokenizer)

    def draft(self, reference: str | None = None, among: Ranks = ALONE) -> Model:
        return self._draft
