"""``task=train_draft``: a draft model or a draft head, trained on the target's own answers."""

from __future__ import annotations

from pathlib import Path

from spec_sdk.contracts import Task
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.ranks import launched_processes
from spec_sdk.run_output import check_writable
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.training.options import TrainDraftConfig, check_method, file_names, temperatures_of
from spec_sdk.training.sample_plan import SamplePlan, read_openings, read_texts


class TrainDraft(Task):
    """Trains a draft model of the target's layers, or a draft head, on its own answers; goes on where it stopped."""

    name = "train_draft"
    Config = TrainDraftConfig
    config: TrainDraftConfig
    every_rank = True
    without = ("compare", "constraint", "error_bounds")

    def run(self, app: Settings) -> int:
        """Progress goes to stderr, the override that uses the draft model to stdout; returns 0.

        Raises UserError for bad input, before anything is answered or trained.
        """
        output, work, data, features = self._directories()
        plan = self._sample_plan(app)

        from spec_sdk.training.run import TrainingRun

        run = TrainingRun(self.config, app, plan, output, work, data, features, say)
        if self.config.only in (None, "data"):
            run.write_data()
        if self.config.only in (None, "features"):
            run.write_features()
        if self.config.only in (None, "train"):
            run.train()
            if run.ranks.is_leader:
                print(run.override)
        return 0

    def _directories(self) -> tuple[Path, Path, Path, Path]:
        config = self.config
        if config.output is None or not config.output.strip():
            raise UserError("task.output: name the directory of the draft model, as in task.output=my-draft")
        output = expanded(config.output, "task.output")
        work = (
            output.with_name(f"{output.name}-training") if config.work is None else expanded(config.work, "task.work")
        )
        data = work / "data" if config.data is None else expanded(config.data, "task.data")
        features = (
            data.with_name(f"{data.name}-features")
            if config.features is None
            else expanded(config.features, "task.features")
        )
        for name, directory in (("output", output), ("work", work), ("data", data), ("features", features)):
            try:
                check_writable(directory)
            except UserError as error:
                raise UserError(f"task.{name}:{str(error).partition(':')[2]}") from error
        for name, directory in (("work", work), ("data", data), ("features", features)):
            if output.absolute() in (directory.absolute(), *directory.absolute().parents):
                raise UserError(f"task.{name}: {directory} lies in task.output={output}; name a directory beside it")
        if config.init_from is not None and Path(config.init_from).expanduser().resolve() == output.resolve():
            raise UserError(f"task.init_from: {config.init_from} is task.output too, which would be written over it")
        return output, work, data, features

    def _sample_plan(self, app: Settings) -> SamplePlan:
        """The prompts. Raises UserError for options that do not fit each other."""
        config = self.config
        check_method(config)
        if app.prompt is not None or app.prompt_file is not None:
            given = "prompt" if app.prompt is not None else "prompt_file"
            raise UserError(f"{given}: task=train_draft has prompts of its own; give task.prompts=FILE")
        if config.only in ("data", "features") and launched_processes() > 1:
            raise UserError("task.only: the target answers in one process; start it without a launcher")
        if launched_processes() > 1 and config.only != "train":
            raise UserError(
                "task.only: several processes train together and do not answer; run task.only=data in one process "
                "before, then launch task.only=train"
            )
        if config.batch_tokens < config.width:
            raise UserError(f"task.batch_tokens: {config.batch_tokens} must be {config.width} (task.width) or more")
        for name in ("vocabulary", "drafted_vocabulary"):
            if getattr(config, name) is not None and config.whole and config.method == "model":
                raise UserError(
                    f"task.{name}: a draft model of fewer tokens takes its head from the target; whole=false, "
                    "and task=export writes one that is whole"
                )
        if config.warmup >= config.steps and config.warmup:
            raise UserError(f"task.warmup: {config.warmup} must be below task.steps={config.steps}")
        texts, only_held_out = (
            read_texts(file_names(files, f"task.{name}"), f"task.{name}")
            for name, files in (("prompts", config.prompts), ("held_out_prompts", config.held_out_prompts))
        )
        if not texts and config.openings is None:
            raise UserError("task.openings: without them and without task.prompts there is nothing to answer")
        openings = {} if config.openings is None else read_openings(config.openings, "task.openings")
        return SamplePlan(only_held_out, texts, openings, config.seed, config.held_out, temperatures_of(config))
