"""``task.method=model``: a draft model of some of the target's layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.training.draft_directory import draft_settings, write_draft
from spec_sdk.training.draft_shape import DraftShape, chosen_layers
from spec_sdk.training.learner import Learner
from spec_sdk.training.method import TrainingMethod
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.trainable import TrainableDraft

LAYERS = 6


class DraftModelMethod(TrainingMethod):
    """Cuts, writes and describes a draft model of ``target``. Raises UserError for what does not fit it."""

    thing, pipeline = "a draft model", "sd_chain"
    option, untrained = "model.draft", "untrained cut"

    def __init__(self, config: TrainDraftConfig, target: Checkpoint) -> None:
        self._config, self._target = config, target
        chosen = LAYERS if config.layers is None else config.layers
        self._shape = DraftShape(chosen_layers(chosen, target.config.num_layers), config.mlp_size, config.kv_heads)
        self._whole, self._stored = bool(config.whole), config.stored or "int8"
        self._settings = draft_settings(target, self._shape, self._whole)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"layers": list(self._shape.layers)}

    def learner(self, device: torch.device, precision: torch.dtype, token_R: torch.Tensor | None) -> TrainableDraft:
        source = ChosenWeights(self._target, "dense", lambda bits: False)
        return TrainableDraft(source, self._shape, device, precision, token_R)

    def write(self, directory: Path, model: Learner, token_R: torch.Tensor | None) -> None:
        assert isinstance(model, TrainableDraft)
        write_draft(directory, model, self._target, self._settings, self._stored, token_R)

    def facts(self, parameters: int, size: str) -> Mapping[str, str]:
        return {
            "layers of the target": str(list(self._shape.layers)),
            "parameters of its own": f"{parameters / 1e6:.1f} M, {size} as {self._stored}",
            "embedding and output head": "its own" if self._whole else "the target's",
        }

    @property
    def origin(self) -> str:
        return f"layers {list(self._shape.layers)} of {self._target.name}"
