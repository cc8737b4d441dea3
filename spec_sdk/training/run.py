"""``task=train_draft`` from prompts to a directory: the target answers, the draft model learns from it."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from spec_sdk.contracts import Backend
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.model.checkpoint import Checkpoint, open_checkpoint
from spec_sdk.model.chosen_weights import ChosenWeights
from spec_sdk.model.safetensors_reader import SINGLE_NAME
from spec_sdk.pipeline import build_pipeline, joined_backend
from spec_sdk.ranks import Ranks
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.training.answering import AnswerWriter
from spec_sdk.training.complements import Complements
from spec_sdk.training.curve_plot import can_plot, curve_svg
from spec_sdk.training.draft_directory import draft_settings, write_draft
from spec_sdk.training.draft_shape import DraftShape, chosen_layers
from spec_sdk.training.frequent_tokens import frequent_tokens
from spec_sdk.training.model_card import file_size, model_card
from spec_sdk.training.options import TrainDraftConfig, file_names
from spec_sdk.training.sample_plan import SamplePlan
from spec_sdk.training.sample_shards import SampleShards
from spec_sdk.training.samples import Sample
from spec_sdk.training.target_fingerprint import fingerprint, vocabulary_fingerprint
from spec_sdk.training.trainable import TrainableDraft
from spec_sdk.training.training_loop import TELL_EVERY_S, Schedule, Training, TrainingPlan, duration

CURVE, PLOT, CARD = "training.json", "training.svg", "README.md"
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
        layers = chosen_layers(config.layers, self._target.config.num_layers)
        self._shape = DraftShape(layers, config.mlp_size, config.kv_heads)
        self._settings = draft_settings(self._target, self._shape, config.whole)
        self._backend: Backend = joined_backend(self._app, Registry.discover())
        self._target_print = fingerprint(self._target)
        self._shards = SampleShards(data, self._data_identity())

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self._backend.ranks

    def write_data(self) -> None:
        """Have the target answer until there are enough tokens, going on after what is there."""
        config, there = self._config, list(self._shards.read())
        done, tokens = {sample.number for sample in there}, sum(len(sample.answer) for sample in there)
        if there:
            self._tell(f"data: {tokens} of {config.tokens} tokens are there, of {len(there)} answers")
        if tokens >= config.tokens:
            return
        pipeline = build_pipeline(self._app, Registry.discover(), self._backend)
        writer = AnswerWriter(
            pipeline,
            self._plan,
            config.batch,
            config.labels,
            config.prompt_tokens,
            config.prompt_temperature,
            config.answer_tokens,
            min(config.width, pipeline.context),
            self._app.chat,
        )
        began = told = time.perf_counter()
        first, counted = tokens, list(there)
        # written before the first shard, so that a killed run finds whose they are
        self._shards.write_manifest(self._counts(counted))
        samples = writer.samples(done)
        try:
            for sample in samples:
                self._shards.add(sample, config.shard_tokens)
                counted.append(sample)
                tokens += len(sample.answer)
                now = time.perf_counter()
                if now - told > TELL_EVERY_S:
                    told, rate = now, (tokens - first) / (now - began)
                    left = duration(max(0, config.tokens - tokens) / rate)
                    self._tell(f"data: {tokens} of {config.tokens} tokens, {rate:.0f} a second, {left} left")
                if tokens >= config.tokens:
                    break
        finally:
            samples.close()  # type: ignore[attr-defined]
            self._shards.flush()
            self._shards.write_manifest(self._counts(counted))
        if writer.left_out:
            self._tell(f"data: {writer.left_out} prompts left out, too long for task.width={config.width} or empty")
        if tokens < config.tokens:
            self._tell(f"data: there are no more prompts: {tokens} tokens instead of {config.tokens}")

    def train(self) -> None:
        """Train on what is there, and write the draft model's directory."""
        config = self._config
        samples = sorted(self._shards.read(), key=lambda sample: sample.number)
        counts = self._counts(samples)
        if counts["samples"] == counts["held_out"]:
            raise UserError(f"task.data: {self._shards.directory} has no answers to train on; use more task.tokens")
        device = self._backend.device
        source = ChosenWeights(self._target, "dense", lambda bits: False)
        token_R = frequent_tokens(samples, config.vocabulary, self._target.config.vocab_size)
        model = TrainableDraft(source, self._shape, device, self._precision(), token_R)
        complements = Complements(self._others, source, device, self._precision()) if self._others else None
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
        self._tell(f"{parameters / 1e6:.1f} M parameters, layers {list(self._shape.layers)} of {self._target.name}")
        curve = training.run()
        if self.ranks.is_leader:
            self._write(model, curve, counts, parameters)
        self.ranks.finish()

    def _write(
        self, model: TrainableDraft, curve: list[dict[str, Any]], counts: Mapping[str, Any], parameters: int
    ) -> None:
        config, output = self._config, self._output
        write_draft(output, model, self._target, self._settings, config.stored)
        size = file_size(output / SINGLE_NAME)
        facts = {
            "layers of the target": str(list(self._shape.layers)),
            "parameters of its own": f"{parameters / 1e6:.1f} M, {size} as {config.stored}",
            "embedding and output head": "its own" if config.whole else "the target's",
            "tokens that it can draft": "all" if model.token_R is None else str(len(model.token_R)),
            **({"complements": ", ".join(self._others)} if self._others else {}),
            "steps": f"{config.steps} of {config.batch_tokens} tokens, learning rate {config.learning_rate:g}",
            "answers": "greedy" if config.temperature == 0 else f"at temperature {config.temperature:g}",
        }
        write_atomically(output / CARD, model_card(output.name, self._target, facts, counts, curve, config.depth))
        write_json(output / CURVE, {"target": self._target.name, "data": dict(counts), "curve": curve})
        if can_plot():
            write_atomically(output / PLOT, curve_svg(curve, config.depth, f"{output.name} for {self._target.name}"))
        else:
            self._tell("matplotlib is not installed: no drawing of the curve")
        self._tell(f"{output}: {size} of weights")

    def _counts(self, samples: list[Sample]) -> dict[str, Any]:
        return {
            "samples": len(samples),
            "held_out": sum(sample.held_out for sample in samples),
            "answer_tokens": sum(len(sample.answer) for sample in samples),
            "seed": self._config.seed,
            "kinds": dict(Counter(sample.kind for sample in samples)),
        }

    def _data_identity(self) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _DATA_OPTIONS}
        return {
            "target": self._target.name,
            "target_fingerprint": self._target_print,
            "vocabulary_fingerprint": vocabulary_fingerprint(self._target),
            "prompts_fingerprint": self._plan.fingerprint,
            **options,
        }

    def _identity(self, counts: Mapping[str, Any], complements: Complements | None) -> dict[str, Any]:
        options = {name: getattr(self._config, name) for name in _TRAINING_OPTIONS}
        if complements is not None:
            options |= {"complements": complements.fingerprints, "right_weight": self._config.right_weight}
        return {
            **options,
            "layers": list(self._shape.layers),
            "precision": str(self._precision()).removeprefix("torch."),
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

    def _precision(self) -> torch.dtype:
        if self._config.precision != "auto":
            return torch.float32 if self._config.precision == "float32" else torch.bfloat16
        if self._backend.device.type == "cpu":
            fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
            return torch.bfloat16 if fast else torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
