"""``task=train_draft`` from prompts to a directory: the target answers, the draft model learns from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spec_sdk.contracts import Backend
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.session import Session
from spec_sdk.model.target_identity import target_identity
from spec_sdk.model.trained_drafts import FACTS
from spec_sdk.pipeline import build_pipeline, joined_backend
from spec_sdk.ranks import Ranks
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.training.answers import sample_counts, write_answers
from spec_sdk.training.curve_plot import can_plot, curve_svg
from spec_sdk.training.draft_method import DraftModelMethod
from spec_sdk.training.frequent_tokens import frequent_tokens
from spec_sdk.training.head_method import HeadMethod
from spec_sdk.training.learner import Learner
from spec_sdk.training.model_card import file_size, model_card
from spec_sdk.training.options import TrainDraftConfig
from spec_sdk.training.sample_plan import SamplePlan
from spec_sdk.training.sample_shards import SampleShards
from spec_sdk.training.target_features import TargetFeatures
from spec_sdk.training.target_fingerprint import fingerprint, vocabulary_fingerprint
from spec_sdk.training.training_loop import Schedule, Training, TrainingPlan, precision_of

PLOT, CARD = "training.svg", "README.md"
_DATA_OPTIONS = (
    "seed",
    "temperature",
    "prompt_temperature",
    "prompt_tokens",
    "answer_tokens",
    "labels",
    "held_out",
    "openings",
    "prompts",
    "held_out_prompts",
)
_TRAINING_OPTIONS = (
    "seed",
    "mlp_size",
    "kv_heads",
    "vocabulary",
    "steps",
    "batch_tokens",
    "width",
    "learning_rate",
    "warmup",
    "weight_decay",
    "clip",
    "depth",
    "evaluate_every",
    "evaluation_tokens",
)


class TrainingRun:
    """The two parts of the task on one target. Raises UserError for what does not fit it, before any work."""

    def __init__(
        self,
        config: TrainDraftConfig,
        app: Settings,
        plan: SamplePlan,
        output: Path,
        work: Path,
        data: Path,
        features: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._config, self._plan, self._tell = config, plan, tell
        self._output, self._work = output, work
        # nothing is drafted while the target answers, and of many requests at once weights in few bits are slow
        model = dataclasses.replace(app.model, weights="dense") if app.model.weights == "auto" else app.model
        self._app = dataclasses.replace(
            app, model=model, drafter={"name": "none"}, policy={"name": "fixed"}, predictor={"name": "none"}
        )
        self._target: Checkpoint = open_checkpoint(app.model.target)
        self._method = (DraftModelMethod if config.method == "model" else HeadMethod)(config, self._target)
        self._backend: Backend = joined_backend(self._app, Registry.discover())
        self._precision = precision_of(config.precision, self._backend.device)
        self._target_print = fingerprint(self._target)
        self._shards = SampleShards(data, self._data_identity())
        if isinstance(self._method, HeadMethod):
            self._method.features = TargetFeatures(
                features, self._data_identity(), self._method.taps, self._target.config.hidden_size
            )

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self._backend.ranks

    def write_data(self) -> None:
        """Have the target answer until there are enough tokens, going on after what is there."""
        write_answers(self._config, self._app, self._plan, self._backend, self._shards, self._tell)

    def write_features(self) -> None:
        """Have the target read the answers that are there, and keep what a head learns from; nothing for a draft model,
        nor where all is kept.
        """
        method = self._method
        if not isinstance(method, HeadMethod) or method.features is None:
            return
        shards = self._shards_with_features(method.features)
        if method.features.missing(shards):
            pipeline = build_pipeline(self._app, Registry.discover(), self._backend)
            # nothing above the highest tapped layer is read
            lower = pipeline.models.target.executor.cut(range(max(method.taps)))
            method.features.write(shards, Session(lower, looks_at_logits=False), self._config.batch, self._tell)

    def _shards_with_features(self, features: TargetFeatures) -> list[Path]:
        shards, most = self._shards.paths, self._config.features_gb
        fitting = features.fitting(shards, most * 1e9)
        if shards and not fitting:
            raise UserError(f"task.features_gb: {most:g} is less than the states of one file of answers need")
        if len(fitting) < len(shards):
            self._tell(
                f"features: {len(fitting)} of {len(shards)} files of answers fit into task.features_gb={most:g}; "
                "the others are left out"
            )
        return fitting

    def train(self) -> None:
        """Train on what is there, and write the directory."""
        config = self._config
        if isinstance(self._method, HeadMethod) and self._method.features is not None:
            samples = self._method.features.open(self._shards_with_features(self._method.features))
        else:
            samples = list(self._shards.read())
        samples.sort(key=lambda sample: sample.number)
        counts = sample_counts(samples, config.seed)
        if counts["samples"] == counts["held_out"]:
            raise UserError(f"task.data: {self._shards.directory} has no answers to train on; use more task.tokens")
        device = self._backend.device
        token_R = frequent_tokens(samples, config.vocabulary, self._target.config.vocab_size)
        model = self._method.learner(device, self._precision, token_R)
        training = Training(
            model,
            samples,
            self._training_plan(),
            self._work,
            self._identity(counts),
            self.ranks,
            device,
            self._tell,
        )
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if training.progress.step:
            self._tell(f"training goes on after step {training.progress.step} of {config.steps}")
        self._tell(f"{parameters / 1e6:.1f} M parameters, {self._method.origin}")
        curve = training.run()
        if self.ranks.is_leader:
            tokens = "all" if token_R is None else str(len(token_R))
            self._write(model, curve, counts, parameters, tokens)
        self.ranks.finish()

    def _write(
        self, model: Learner, curve: list[dict[str, Any]], counts: Mapping[str, Any], parameters: int, tokens: str
    ) -> None:
        config, output = self._config, self._output
        self._method.write(output, model)
        size = file_size(output / SINGLE_NAME)
        facts = {
            **self._method.facts(parameters, size),
            "tokens that it can draft": tokens,
            "steps": f"{config.steps} of {config.batch_tokens} tokens, learning rate {config.learning_rate:g}",
            "answers": "greedy" if config.temperature == 0 else f"at temperature {config.temperature:g}",
        }
        card = model_card(output.name, self._method, self._target, facts, counts, curve, config.depth)
        write_atomically(output / CARD, card)
        made = {
            "method": config.method,
            "target": self._target.name,
            "target_identity": target_identity(self._target),
        }
        write_json(output / FACTS, {**made, "data": dict(counts), "curve": curve})
        if can_plot():
            write_atomically(output / PLOT, curve_svg(curve, config.depth, f"{output.name} for {self._target.name}"))
        else:
            self._tell("matplotlib is not installed: no drawing of the curve")
        self._tell(f"{output}: {size} of weights")

    @property
    def override(self) -> str:
        """The override that uses what was trained."""
        return f"{self._method.option}={self._output}"

    def _data_identity(self) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _DATA_OPTIONS}
        return {
            "target": self._target.name,
            "target_fingerprint": self._target_print,
            "vocabulary_fingerprint": vocabulary_fingerprint(self._target),
            "prompts_fingerprint": self._plan.fingerprint,
            **options,
        }

    def _identity(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _TRAINING_OPTIONS}
        return {
            **options,
            **self._method.identity,
            "precision": str(self._precision).removeprefix("torch."),
            "tokens": counts["answer_tokens"],
            "data": [counts["samples"], self._target_print],
        }

    def _training_plan(self) -> TrainingPlan:
        config = self._config
        return TrainingPlan(
            Schedule(config.steps, config.learning_rate, config.warmup),
            config.width,
            config.batch_tokens // config.width,
            config.seed,
            config.weight_decay,
            config.clip,
            config.depth,
            config.evaluate_every,
            config.evaluation_tokens,
            config.save_every,
        )
