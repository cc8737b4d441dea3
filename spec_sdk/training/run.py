"""``task=train_draft`` from prompts to a directory: the target answers, the draft model learns from it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from spec_sdk.contracts import Backend
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.executor import Executor
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.model.target_identity import target_identity
from spec_sdk.model.trained_drafts import FACTS
from spec_sdk.pipeline import build_pipeline, joined_backend
from spec_sdk.ranks import Ranks
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.svg_plot import can_plot
from spec_sdk.training.answers import sample_counts, write_answers
from spec_sdk.training.complements import Complements, open_complements
from spec_sdk.training.curve_plot import curve_svg
from spec_sdk.training.draft_method import DraftModelMethod
from spec_sdk.training.frequent_tokens import frequent_tokens
from spec_sdk.training.head_method import HeadMethod
from spec_sdk.training.learner import Learner
from spec_sdk.training.method import TrainingMethod
from spec_sdk.training.model_card import file_size, model_card
from spec_sdk.training.options import TrainDraftConfig, file_names, temperatures_of
from spec_sdk.training.sample_plan import SamplePlan
from spec_sdk.training.sample_shards import SampleShards
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


def _check_vocabulary(config: TrainDraftConfig, target: Checkpoint) -> None:
    """Raise UserError for more tokens than the target has."""
    has = target.config.vocab_size
    for name in ("vocabulary", "drafted_vocabulary"):
        asked = getattr(config, name)
        if asked is not None and asked > has:
            raise UserError(f"task.{name}: {asked} tokens are more than {target.name} has, {has}")


class TrainingRun:
    """The parts of the task on one target. Raises UserError for what does not fit it, before any work."""

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
        self._others = file_names(config.complements, "task.complements")
        # nothing is drafted while the target answers, and of many requests at once weights in few bits are slow
        model = dataclasses.replace(app.model, weights="dense") if app.model.weights == "auto" else app.model
        self._app = dataclasses.replace(
            app, model=model, drafter={"name": "none"}, policy={"name": "fixed"}, predictor={"name": "none"}
        )
        self._target: Checkpoint = open_checkpoint(app.model.target)
        _check_vocabulary(config, self._target)
        self._backend: Backend = joined_backend(self._app, Registry.discover())
        self._precision = precision_of(config.precision, self._backend.device)
        self._target_print = fingerprint(self._target)
        identity = self._data_identity()
        self._method: TrainingMethod = (
            DraftModelMethod(config, self._target)
            if config.method == "model"
            else HeadMethod(config, self._target, features, identity)
        )
        self._shards = SampleShards(data, identity)
        if config.only in (None, "train"):
            open_complements(self._others, self._dense())

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self._backend.ranks

    def write_data(self) -> None:
        """Have the target answer until there are enough tokens, going on after what is there."""
        write_answers(self._config, self._app, self._plan, self._backend, self._shards, self._tell)

    def write_features(self) -> None:
        """Make of the answers that are there what is learned from besides, if it is not made yet."""

        def target() -> Executor:
            return build_pipeline(self._app, Registry.discover(), self._backend).models.target.executor

        self._method.prepare(self._shards, target, self._tell)

    def train(self) -> None:
        """Train on what is there, and write the directory."""
        config = self._config
        samples = sorted(self._method.samples(self._shards, self._tell), key=lambda sample: sample.number)
        counts = sample_counts(samples, config.seed)
        if counts["samples"] == counts["held_out"]:
            raise UserError(f"task.data: {self._shards.directory} has no answers to train on; use more task.tokens")
        device = self._backend.device
        token_R = frequent_tokens(samples, config.vocabulary, self._target.config.vocab_size)
        model = self._method.learner(device, self._precision, token_R)
        complements = None
        if self._others:
            complements = Complements(self._others, self._dense(), device, self._precision)
        training = Training(
            model,
            samples,
            self._training_plan(),
            self._work,
            self._identity(counts, complements),
            self.ranks,
            device,
            self._tell,
            complements,
        )
        if complements is not None:
            self._tell(f"complementing {', '.join(complements.names)}")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if training.progress.step:
            self._tell(f"training goes on after step {training.progress.step} of {config.steps}")
        self._tell(f"{parameters / 1e6:.1f} M parameters, {self._method.origin}")
        curve = training.run()
        if self.ranks.is_leader:
            drafted_R = frequent_tokens(
                samples, config.drafted_vocabulary or config.vocabulary, self._target.config.vocab_size
            )
            self._write(model, curve, counts, parameters, drafted_R)
        self.ranks.finish()

    def _write(
        self,
        model: Learner,
        curve: list[dict[str, Any]],
        counts: Mapping[str, Any],
        parameters: int,
        token_R: torch.Tensor | None,
    ) -> None:
        config, output = self._config, self._output
        self._method.write(output, model, token_R)
        size = file_size(output / SINGLE_NAME)
        facts = {
            **self._method.facts(parameters, size),
            "tokens that it can draft": "all" if token_R is None else str(len(token_R)),
            **({"measured with": f"{config.vocabulary or 'all'} tokens"} if config.drafted_vocabulary else {}),
            **({"complements": ", ".join(self._others)} if self._others else {}),
            **({} if self._method.init_from is None else {"began as": f"`{self._method.init_from}`"}),
            "steps": f"{config.steps} of {config.batch_tokens} tokens, learning rate {config.learning_rate:g}",
            "answers": _temperatures(temperatures_of(config)),
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

    def _dense(self) -> ModelSource:
        """The target as complements read it."""
        return ChosenWeights(self._target, "dense", lambda bits: False)

    def _data_identity(self) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _DATA_OPTIONS}
        return {
            "target": self._target.name,
            # before what follows from them: the first that differs is told of
            **options,
            "target_fingerprint": self._target_print,
            "vocabulary_fingerprint": vocabulary_fingerprint(self._target),
            "prompts_fingerprint": self._plan.fingerprint,
        }

    def _identity(self, counts: Mapping[str, Any], complements: Complements | None) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _TRAINING_OPTIONS}
        if complements is not None:
            options |= {"complements": complements.fingerprints, "right_weight": self._config.right_weight}
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
            config.right_weight,
        )


def _temperatures(given: Sequence[float]) -> str:
    """Of the answers, in words; of several each as often as it is given."""
    counts = Counter(given)
    shares = {one: f"{count} of {len(given)} " if len(counts) > 1 else "" for one, count in counts.items()}
    return ", ".join(f"{share}{f'at temperature {one:g}' if one else 'greedy'}" for one, share in shares.items())
