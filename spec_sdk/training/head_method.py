"""``task.method=eagle3``: an EAGLE-3 head, which reads the target's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.checkpoint import Checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.config_fields import read_json_object
from spec_sdk.model.draft_heads.tapped_layers import default_taps
from spec_sdk.model.executor import Executor
from spec_sdk.model.session import Session
from spec_sdk.training.draft_shape import DraftShape
from spec_sdk.training.head_directory import head_settings, write_head
from spec_sdk.training.head_start import HeadStart, head_config, head_start
from spec_sdk.training.learner import Learner
from spec_sdk.training.method import TrainingMethod
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.sample_shards import SampleShards
from spec_sdk.training.samples import Sample
from spec_sdk.training.target_features import TargetFeatures
from spec_sdk.training.trainable_head import TrainableHead
from spec_sdk.training.trained_head import TrainedHead


class HeadMethod(TrainingMethod):
    """Begins, writes and describes a head for ``target``. Raises UserError for what does not fit it.

    ``features``: the directory of the target's states; ``data_identity``: what the answers follow from.
    """

    thing, pipeline = "an EAGLE-3 head", "eagle_tree"
    option, untrained = "drafter.checkpoint", "untrained head"

    def __init__(
        self, config: TrainDraftConfig, target: Checkpoint, features: Path, data_identity: Mapping[str, Any]
    ) -> None:
        self._config, self._target = config, target
        layers = target.config.num_layers
        self._trained: TrainedHead | None = None
        taps = default_taps(layers) if config.taps is None else tuple(config.taps)
        if config.init_from is not None:
            self.init_from, self.untrained = config.init_from, "as it began"
            self._trained = TrainedHead(config.init_from, layers)
            taps = self._trained.taps
        self._taps = taps
        if not taps or min(taps) < 0 or not 0 < max(taps) <= layers or len(set(taps)) < len(taps):
            raise UserError(f"task.taps: {list(taps)} must be different layers of {target.name}, which has {layers}")
        self._whole, self._stored = config.whole is not False, config.stored or "bfloat16"
        self._shape = DraftShape([layers - 1], config.mlp_size, config.kv_heads)
        if self._trained is not None:
            self._shape = self._trained.shape(target.config)
        self._values = read_json_object(target.directory / "config.json")
        head_config(target.config, self._values, self._shape)
        if self._trained is not None:
            self._start()
        self._features = TargetFeatures(features, data_identity, taps, target.config.hidden_size)

    @property
    def identity(self) -> Mapping[str, Any]:
        config, trained = self._config, self._trained
        return {
            "init_from": None if trained is None else trained.fingerprint,
            "method": "eagle3",
            "taps": list(self._taps),
            "unrolled": config.unrolled,
            "step_weight": config.step_weight,
        }

    def prepare(self, shards: SampleShards, target: Callable[[], Executor], tell: Callable[[str], None]) -> None:
        """Have the target read the answers, and keep its states where there are none yet."""
        fitting = self._fitting(shards, tell)
        if self._features.missing(fitting):
            # nothing above the highest tapped layer is read
            lower = target().cut(range(max(self._taps)))
            self._features.write(fitting, Session(lower, looks_at_logits=False), self._config.batch, tell)

    def samples(self, shards: SampleShards, tell: Callable[[str], None]) -> list[Sample]:
        return self._features.open(self._fitting(shards, tell))

    def learner(self, device: torch.device, precision: torch.dtype, token_R: torch.Tensor | None) -> TrainableHead:
        config = self._config
        return TrainableHead(
            self._start(), self._features.of, config.unrolled, config.step_weight, device, precision, token_R
        )

    def write(self, directory: Path, model: Learner, token_R: torch.Tensor | None) -> None:
        assert isinstance(model, TrainableHead)
        tokens = self._target.config.vocab_size if token_R is None else len(token_R)
        settings = head_settings(self._target, self._start(), tokens, self._config.unrolled, self._whole)
        write_head(directory, model, settings, self._stored)

    def facts(self, parameters: int, size: str) -> Mapping[str, str]:
        config = self._config
        return {
            "kind": "EAGLE-3, in the format of speculators",
            "layers of the target that it reads": ", ".join(map(str, self._taps)),
            "parameters of its own": f"{parameters / 1e6:.1f} M, {size} as {self._stored}",
            "output rows": "in the file" if self._whole else "the target's",
            "steps unrolled": f"{config.unrolled}, each weighted {config.step_weight:g} of the one before",
        }

    @property
    def origin(self) -> str:
        if self.init_from is not None:
            return f"begins as {self.init_from}"
        return f"a head that reads layers {', '.join(map(str, self._taps))} of {self._target.name}"

    def _fitting(self, shards: SampleShards, tell: Callable[[str], None]) -> list[Path]:
        """The files of answers whose states are kept."""
        most = self._config.features_gb
        fitting = self._features.fitting(shards.paths, most * 1e9)
        if shards.paths and not fitting:
            raise UserError(f"task.features_gb: {most:g} is less than the states of one file of answers need")
        if len(fitting) < len(shards.paths):
            tell(
                f"features: {len(fitting)} of {len(shards.paths)} files of answers fit into task.features_gb={most:g}; "
                "the others are left out"
            )
        return fitting

    def _start(self) -> HeadStart:
        source = ChosenWeights(self._target, "dense", lambda bits: False)
        start = head_start(source, self._values, self._shape, self._taps, self._config.seed)
        return start if self._trained is None else self._trained.start(start)
