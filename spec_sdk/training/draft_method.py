"""``task.method=model``: a draft model of some of the target's layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.model_source import ModelSource
from spec_sdk.training.draft_directory import draft_settings, settings_of_draft, write_draft
from spec_sdk.training.draft_shape import DraftShape, chosen_layers
from spec_sdk.training.learner import Learner
from spec_sdk.training.method import TrainingMethod
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.target_fingerprint import fingerprint
from spec_sdk.training.trainable import ENDS, TrainableDraft
from spec_sdk.training.trained_draft import open_trained_draft, without_option

LAYERS = 6


class DraftModelMethod(TrainingMethod):
    """Cuts, writes and describes a draft model of ``target``. Raises UserError for what does not fit it."""

    thing, pipeline = "a draft model", "sd_chain"
    option, untrained = "model.draft", "untrained cut"

    def __init__(self, config: TrainDraftConfig, target: Checkpoint) -> None:
        self._target, self._stored, self._whole = target, config.stored or "int8", bool(config.whole)
        self._source: ModelSource = ChosenWeights(target, "dense", lambda bits: False)
        if config.init_from is not None:
            self._go_on_from(config.init_from, config)
            return
        chosen = LAYERS if config.layers is None else config.layers
        self._shape = DraftShape(chosen_layers(chosen, target.config.num_layers), config.mlp_size, config.kv_heads)
        self._settings = draft_settings(target, self._shape, self._whole)

    @property
    def identity(self) -> Mapping[str, Any]:
        if self.init_from is not None:
            return {"init_from": fingerprint(self._source)}
        return {"init_from": None, "layers": list(self._shape.layers)}

    def learner(self, device: torch.device, precision: torch.dtype, token_R: torch.Tensor | None) -> TrainableDraft:
        return TrainableDraft(self._source, self._shape, device, precision, token_R)

    def write(self, directory: Path, model: Learner, token_R: torch.Tensor | None) -> None:
        assert isinstance(model, TrainableDraft)
        write_draft(directory, model, self._target, self._settings, self._stored, token_R)

    def facts(self, parameters: int, size: str) -> Mapping[str, str]:
        layers = str(list(self._shape.layers)) if self.init_from is None else None
        return {
            **({} if layers is None else {"layers of the target": layers}),
            "parameters of its own": f"{parameters / 1e6:.1f} M, {size} as {self._stored}",
            "embedding and output head": "its own" if self._whole else "the target's",
        }

    @property
    def origin(self) -> str:
        if self.init_from is not None:
            return f"begins as {self.init_from}"
        return f"layers {list(self._shape.layers)} of {self._target.name}"

    def _go_on_from(self, reference: str, config: TrainDraftConfig) -> None:
        try:
            trained, source, _ = open_trained_draft(reference, self._target)
            if source.config.vocab_size < self._target.config.vocab_size:
                raise UserError(
                    f"{trained.name} has {source.config.vocab_size} rows of tokens, and {self._target.name} has "
                    f"{self._target.config.vocab_size}"
                )
            self._shape = DraftShape(range(source.config.num_layers))
            self._shape.config(source.config)
            lent = {name for name in ENDS if name in weights_of(trained.config)}
            if trained.borrowed and trained.borrowed != {weights_of(trained.config).name(name) for name in lent}:
                raise UserError(f"{trained.name} takes only {' and '.join(sorted(trained.borrowed))} from its target")
        except UserError as error:
            raise UserError(f"task.init_from: {without_option(str(error))}") from error
        if not trained.borrowed:
            if config.whole is False:
                raise UserError(f"task.whole: {trained.name} has an embedding of its own, so leave it out")
            for name in ("vocabulary", "drafted_vocabulary"):
                if getattr(config, name) is not None:
                    raise UserError(f"task.{name}: {trained.name} has an output head of its own, of all tokens")
            self._whole = True
        self.init_from, self.untrained = reference, "as it began"
        self._source = source
        self._settings = settings_of_draft(trained, self._whole)
