"""``task=train_draft``: a draft model of a few of the target's layers, trained on the target's own answers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.ranks import launched_processes
from spec_sdk.run_output import check_writable
from spec_sdk.settings import Settings
from spec_sdk.training.sample_plan import SHIPPED_OPENINGS, SamplePlan, read_openings, read_texts


@dataclass
class TrainDraftConfig:
    """Options of ``task=train_draft``."""

    output: str | None = option(None, "the directory of the draft model, for model.draft")
    work: str | None = option(
        None, "the directory of data and of the training's state", means={None: "OUTPUT-training"}
    )
    data: str | None = option(None, "the directory of the target's answers", means={None: "WORK/data"})
    only: str | None = option(
        None,
        "one part of the work",
        choices={"data": "have the target answer", "train": "on answers that are there"},
        means={None: "both"},
    )
    tokens: int = option(300_000, "of answers, at least, unless prompts run out", minimum=1)
    prompts: Any = option(None, "a file of prompts or a list of them, text or .jsonl", means={None: "no files"})
    openings: str | None = option(
        SHIPPED_OPENINGS,
        "a YAML file, kind: [beginnings of prompts], which the target goes on from; many_kinds comes with spec-sdk",
        means={None: "none, only task.prompts"},
    )
    temperature: float = option(0.0, "of the answers to train on", minimum=0, maximum=2, means={0.0: "greedy"})
    prompt_temperature: float = option(0.8, "of the prompts that the target writes", minimum=0, maximum=2)
    prompt_tokens: int = option(64, "that the target adds to an opening, at most", minimum=1)
    answer_tokens: int = option(256, "of an answer, at most", minimum=2)
    batch: int = option(32, "answers that are written at a time", minimum=1)
    labels: int = option(16, "of the target's most probable tokens kept for each token", minimum=1)
    held_out: float = option(0.04, "share of the answers that only measure", minimum=0, below=1)
    shard_tokens: int = option(16_384, "answer tokens in a file of the data: what a killed run loses", minimum=1)
    seed: int = option(0, "of prompts, answers and the order of training", minimum=0, maximum=2**31 - 1)
    layers: Any = option(6, "of the target that the draft model begins with: a number, evenly spread, or a list")
    mlp_size: int | None = option(None, "units kept of each MLP, those of the largest weights", minimum=1)
    kv_heads: int | None = option(None, "KV heads kept of each layer, with their query heads", minimum=1)
    vocabulary: int | None = option(
        None, "tokens that can be drafted, the most probable ones of the data", minimum=16, means={None: "all"}
    )
    steps: int = option(2000, "of the optimiser", minimum=1)
    batch_tokens: int = option(4096, "of prompts and answers in a step", minimum=1)
    width: int = option(512, "tokens of a packed row; longer samples are cut off", minimum=2)
    learning_rate: float = option(6e-4, "at its highest", above=0, maximum=1)
    warmup: int = option(100, "steps until then", minimum=0)
    weight_decay: float = option(0.01, "of AdamW", minimum=0, maximum=1)
    clip: float = option(1.0, "largest norm of a step's derivatives", above=0, maximum=1e9)
    precision: str = option(
        "auto",
        "of matrix products while training",
        choices={"auto": "bfloat16 where the processor multiplies it", "float32": "", "bfloat16": ""},
    )
    depth: int = option(5, "drafted tokens of the chains that evaluations measure", minimum=1)
    evaluate_every: int = option(250, "steps", minimum=1)
    evaluation_tokens: int = option(8192, "held-out answer tokens that an evaluation reads", minimum=1)
    save_every: int = option(100, "steps after which the training's state is kept", minimum=1)
    stored: str = option(
        "int8",
        "the weights in the directory",
        choices={"int8": "8 bits", "int4": "4 bits", "bfloat16": "", "float32": ""},
    )
    whole: bool = option(
        False, "embedding and output head in the directory too; false: they are the target's, which lends them"
    )


class TrainDraft(Task):
    """Trains a draft model of some of the target's layers on the target's own answers; goes on where it stopped."""

    name = "train_draft"
    Config = TrainDraftConfig
    config: TrainDraftConfig
    every_rank = True

    def run(self, app: Settings) -> int:
        """Progress goes to stderr, the override that uses the draft model to stdout; returns 0.

        Raises UserError for bad input, before anything is answered or trained.
        """
        output, work, data = self._directories()
        plan = self._sample_plan(app)

        from spec_sdk.training.run import TrainingRun

        run = TrainingRun(self.config, app, plan, output, work, data, say)
        if self.config.only != "train":
            run.write_data()
        if self.config.only != "data":
            run.train()
            if run.ranks.is_leader:
                print(f"model.draft={output}")
        return 0

    def _directories(self) -> tuple[Path, Path, Path]:
        config = self.config
        if config.output is None or not config.output.strip():
            raise UserError("task.output: name the directory of the draft model, as in task.output=my-draft")
        output = expanded(config.output, "task.output")
        work = (
            output.with_name(f"{output.name}-training") if config.work is None else expanded(config.work, "task.work")
        )
        data = work / "data" if config.data is None else expanded(config.data, "task.data")
        for name, directory in (("output", output), ("work", work), ("data", data)):
            try:
                check_writable(directory)
            except UserError as error:
                raise UserError(f"task.{name}:{str(error).partition(':')[2]}") from error
        for name, directory in (("work", work), ("data", data)):
            if output.absolute() in (directory.absolute(), *directory.absolute().parents):
                raise UserError(f"task.{name}: {directory} lies in task.output={output}; name a directory beside it")
        return output, work, data

    def _sample_plan(self, app: Settings) -> SamplePlan:
        """The prompts. Raises UserError for options that do not fit each other."""
        config = self.config
        if app.prompt is not None or app.prompt_file is not None:
            given = "prompt" if app.prompt is not None else "prompt_file"
            raise UserError(f"{given}: task=train_draft has prompts of its own; give task.prompts=FILE")
        if config.only == "data" and launched_processes() > 1:
            raise UserError("task.only: the target answers in one process; start it without a launcher")
        if launched_processes() > 1 and config.only != "train":
            raise UserError(
                "task.only: several processes train together and do not answer; run task.only=data in one process "
                "before, then launch task.only=train"
            )
        if config.batch_tokens < config.width:
            raise UserError(f"task.batch_tokens: {config.batch_tokens} must be {config.width} (task.width) or more")
        if config.vocabulary is not None and config.whole:
            raise UserError(
                "task.vocabulary: a draft model of fewer tokens takes its head from the target; whole=false"
            )
        if config.warmup >= config.steps and config.warmup:
            raise UserError(f"task.warmup: {config.warmup} must be below task.steps={config.steps}")
        files = [config.prompts] if isinstance(config.prompts, str) else config.prompts or []
        if not isinstance(files, list) or not all(isinstance(name, str) and name.strip() for name in files):
            raise UserError(f"task.prompts: {config.prompts!r} must be a file or a list of files")
        if not files and config.openings is None:
            raise UserError("task.openings: without them and without task.prompts there is nothing to answer")
        openings = {} if config.openings is None else read_openings(config.openings, "task.openings")
        texts = read_texts(files, "task.prompts")
        return SamplePlan(texts, openings, config.seed, config.held_out, config.temperature)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
