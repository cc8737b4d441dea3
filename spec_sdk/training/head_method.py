"""``task.method=eagle3``: an EAGLE-3 head, which reads the target's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.tapped_layers import default_taps
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_directory import head_settings, write_head
from spec_sdk.training.head_start import HeadStart, head_config, head_start
from spec_sdk.training.learner import Learner
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.target_features import TargetFeatures
from spec_sdk.training.trainable_head import TrainableHead


class HeadMethod:
    """Begins, writes and describes a head for ``target``. Raises UserError for what does not fit it."""

    thing, pipeline = "EAGLE-3 head", "eagle_tree"
    option, untrained = "drafter.checkpoint", "untrained head"

    def __init__(self, config: TrainDraftConfig, target: Checkpoint) -> None:
        self._config, self._target = config, target
        layers = target.config.num_layers
        self.taps = default_taps(layers) if config.taps is None else tuple(config.taps)
        if min(self.taps) < 0 or max(self.taps) > layers or len(set(self.taps)) < len(self.taps):
            raise UserError(
                f"task.taps: {list(self.taps)} must be different layers of {target.name}, which has {layers}"
            )
        self._whole, self._stored = config.whole is not False, config.stored or "bfloat16"
        self._shape = DraftShape([layers - 1], config.mlp_size, config.kv_heads)
        self._values = read_json_object(target.directory / "config.json")
        head_config(target.config, self._values, self._shape)
        self.features: TargetFeatures | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a training follows from beside its options."""
        config = self._config
        return {
            "method": "eagle3",
            "taps": list(self.taps),
            "unrolled": config.unrolled,
            "step_weight": config.step_weight,
        }

    def learner(self, device: torch.device, precision: torch.dtype, token_R: torch.Tensor | None) -> TrainableHead:
        """What is trained. :attr:`features` must have been opened."""
        assert self.features is not None
        config = self._config
        return TrainableHead(
            self._start(), self.features.of, config.unrolled, config.step_weight, device, precision, token_R
        )

    def write(self, directory: Path, model: Learner) -> None:
        """Raises OSError."""
        assert isinstance(model, TrainableHead)
        tokens = self._target.config.vocab_size if model.token_R is None else len(model.token_R)
        settings = head_settings(self._target, self._start(), tokens, self._config.unrolled, self._whole)
        write_head(directory, model, settings, self._stored)

    def facts(self, parameters: int, size: str) -> Mapping[str, str]:
        """What the model card says of it."""
        config = self._config
        return {
            "kind": "EAGLE-3, in the format of speculators",
            "layers of the target that it reads": ", ".join(map(str, self.taps)),
            "parameters of its own": f"{parameters / 1e6:.1f} M, {size} as {self._stored}",
            "output rows": "in the file" if self._whole else "the target's",
            "steps unrolled": f"{config.unrolled}, each weighted {config.step_weight:g} of the one before",
        }

    @property
    def origin(self) -> str:
        """A line on what it began as."""
        return f"a head that reads layers {', '.join(map(str, self.taps))} of {self._target.name}"

    def _start(self) -> HeadStart:
        source = ChosenWeights(self._target, "dense", lambda bits: False)
        return head_start(source, self._values, self._shape, self.taps, self._config.seed)
