"""``--multirun``: Hydra's sweeper and launcher make and run the jobs; here they get a directory and one table.

Whatever launcher runs them, and in whatever processes, a job that fails costs the others nothing.
"""

from __future__ import annotations

import contextlib
import copy
import re
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from spec_sdk.cli import started_ray
from spec_sdk.cli.earlier_sweep import finished_jobs, forget_summary, jobs_not_run_again, keep_outcomes
from spec_sdk.cli.jobs import RESULTS, hear_signals, report, status_of, worst
from spec_sdk.cli.objective import SPEEDUP, best_of, directions_of, known_metrics
from spec_sdk.cli.outcomes import read_outcomes
from spec_sdk.cli.sweep_end import SweepEnd
from spec_sdk.cli.sweep_job import JobFailed, SweepJob
from spec_sdk.config.chosen_pipeline import task_overrides
from spec_sdk.config.composing import default_output_dir, directory_option, explained
from spec_sdk.config.hydra_loader import CONFIG_NAME, CheckedLoader, config_loader
from spec_sdk.config.overrides import as_text, parse
from spec_sdk.counted import counted
from spec_sdk.errors import UserError, did_you_mean, in_a_line
from spec_sdk.files import expanded, missing_directories, remove_abandoned, remove_empty, write_json
from spec_sdk.report import SUMMARY_COLUMNS, print_plugins_of_jobs, summary_cells
from spec_sdk.run_output import OUTCOMES, SUMMARY, check_writable, unfinished_files
from spec_sdk.say import say
from spec_sdk.settings import RUN_OPTIONS, SweepSettings, check_common, sweep_of
from spec_sdk.tables import number, print_table

HYDRA_SWEEP_FILE = "multirun.yaml"
OF_ONE_JOB = re.compile(r"\$\{hydra[.:]job\.(num|id|override_dirname)\}")
"""What a job's directory must be named after, for two jobs not to share it."""
IN_TABLE = ("tokens_per_second", "mean_accepted_tokens", "acceptance_rate")
"""Metrics that have a column of the table anyway."""
ENDING_TRIES = 20
"""How often, a tenth of a second apart, it is looked whether a process that was told to end holds its files."""
EXHAUSTIVE = "basic"
"""Hydra's own sweeper, which tries everything and optimises nothing."""
IN_THIS_PROCESS, JOBLIB = "basic", "joblib"
"""Hydra's own launcher, and one whose processes a terminal's Ctrl-C reaches."""


def run_sweep(overrides: Sequence[str]) -> int:
    """Run the sweep that a command line asks for. Returns the worst job's exit status.

    Raises UserError for what is wrong before the first job, whatever it is that Hydra raises of it.
    """
    with config_loader() as loader:
        with explained(overrides):
            config = loader.load_configuration(CONFIG_NAME, list(overrides), RunMode.MULTIRUN)
            sweep = Sweep(config, overrides, loader)
        hear_signals()
        return sweep.run()


class Sweep:
    """The jobs of one ``--multirun``: what is checked before them, and what is kept and told of them afterwards."""

    def __init__(self, config: DictConfig, overrides: Sequence[str], loader: CheckedLoader) -> None:
        self._config, self._overrides, self._loader = config, overrides, loader
        parsed = parse(overrides)
        given = {o.key_or_group for o in parsed}
        if any(o.key_or_group == "task" and "serve" in o.get_value_string().split(",") for o in parsed):
            raise UserError("task=serve: it serves until it is told to end, so a sweep has no use for it; leave out -m")
        if "hydra.run.dir" in given:
            raise UserError("hydra.run.dir: a sweep writes into output_dir, which Hydra calls hydra.sweep.dir")
        self._plugins = {kind: str(config.hydra.runtime.choices[f"hydra/{kind}"]) for kind in ("sweeper", "launcher")}
        self._swept = {o.key_or_group for o in parse(overrides) if o.is_sweep_override()}
        self._metrics = self._checked_metrics()
        self._resumes, self._finished = self._checked_resume(), dict[str, tuple[str, str | None]]()
        params = (config.hydra.sweeper or {}).get("params") or {}
        self._swept |= {str(key).lstrip("+") for key in params}
        self._check_common()
        self._directions = self._checked_directions()
        self._directory = self._make_directory()
        subdir = str(config.hydra.sweep._get_node("subdir"))
        self._own_subdirectories = "hydra.sweep.subdir" in given and subdir != "."
        if self._own_subdirectories and (
            not OF_ONE_JOB.search(subdir) or Path(subdir).is_absolute() or ".." in Path(subdir).parts
        ):
            raise UserError(
                f"hydra.sweep.subdir: {subdir!r} must be a path below the sweep's directory with the job's number in "
                "it: ${hydra.job.num}"
            )

    def run(self) -> int:
        """Run the jobs. Returns the worst one's exit status; raises what prevents them if none has run."""
        check_writable(self._directory)
        made = missing_directories(self._directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        keep_outcomes(self._directory)
        self._finished = finished_jobs(self._directory) if self._resumes else {}
        statuses: list[int] = []
        whole = False
        try:
            before = {path.name for path in self._directory.iterdir()}
            try:
                self._launch()
            finally:
                self._remove_unfinished(before)
            whole = True
        except JobFailed:
            pass  # it was told of, and its status counts
        except (KeyboardInterrupt, Exception) as error:
            if not read_outcomes(self._directory):
                # nothing ran, so nothing stays: Hydra writes the sweep's config before it knows that the jobs compose
                (self._directory / HYDRA_SWEEP_FILE).unlink(missing_ok=True)
                remove_empty(made)
                raise
            report(error)
            statuses.append(status_of(error))
        return worst([*statuses, *self._summarise(whole)])

    def _launch(self) -> None:
        hydra = self._config.hydra
        with open_dict(hydra):
            # for the jobs, whose configs are composed anew in whichever process
            hydra.sweep.dir = str(self._directory)
            hydra.overrides.hydra.append(f"hydra.sweep.dir={as_text(str(self._directory))}")
        JobRuntime.instance().set("name", hydra.job.name)
        job = SweepJob(
            directory=self._directory,
            started_in=Path.cwd(),
            swept=frozenset(self._swept),
            own_subdirectories=self._own_subdirectories,
            metrics=self._metrics,
            optimised=self._plugins["sweeper"] != EXHAUSTIVE,
            end=SweepEnd(self._directory),
            finished=self._finished,
        )
        # without callbacks: no installed plugin brings any
        context = HydraContext(config_loader=self._loader, callbacks=Callbacks())
        try:
            with self._explained():
                arguments = task_overrides(hydra)
                sweeper = Plugins.instance().instantiate_sweeper(
                    hydra_context=context, task_function=job, config=self._kept_by_hydra()
                )
                with self._launcher_ready(), self._ended_in_order(job.end):
                    sweeper.sweep(arguments=arguments)
        except (UserError, JobFailed, BrokenPipeError):
            raise
        except Exception as error:
            if _is_ours(error):
                raise
            names = ", ".join(f"hydra/{kind}={name}" for kind, name in self._plugins.items())
            raise UserError(f"{names}: {in_a_line(error)}") from error

    def _remove_unfinished(self, before: Collection[str]) -> None:
        """What jobs in processes of their own left when these were ended, in directories that were not there before."""
        for _ in range(ENDING_TRIES):
            unfinished: list[Path] = []
            # somebody else may remove a directory meanwhile
            with contextlib.suppress(OSError):
                made = [path for path in self._directory.iterdir() if path.is_dir() and path.name not in before]
                unfinished = [path for directory in made for path in unfinished_files(directory)]
            remove_abandoned(unfinished)
            for directory in {path.parent for path in unfinished}:
                remove_empty([directory])
            if not any(path.exists() for path in unfinished):
                return
            # its process is about to end
            time.sleep(0.1)

    def _kept_by_hydra(self) -> DictConfig:
        """The sweep's config as Hydra writes it into the sweep's directory; jobs are made of their own overrides."""
        config = self._config
        if config.save_prompts:
            return config
        kept = copy.deepcopy(config)
        with open_dict(kept):
            kept.prompt = None
            kept.hydra.overrides.task = [
                str(each.input_line) for each in parse(task_overrides(kept.hydra)) if each.key_or_group != "prompt"
            ]
            # it names nothing here: jobs have their own
            kept.hydra.job.override_dirname = ""
        return kept

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What a job's config fails with is told of its plugins."""
        try:
            yield
        except Exception:
            with explained(self._loader.job_overrides or self._overrides):
                raise

    def _launcher_ready(self) -> contextlib.AbstractContextManager[None]:
        if self._plugins["launcher"] != started_ray.LAUNCHER:
            return contextlib.nullcontext()
        return started_ray.started_ray(self._config.hydra.launcher)

    def _ended_in_order(self, end: SweepEnd) -> contextlib.AbstractContextManager[None]:
        launcher = self._plugins["launcher"]
        return contextlib.nullcontext() if launcher == IN_THIS_PROCESS else end.heard(sheltered=launcher == JOBLIB)

    def _checked_metrics(self) -> tuple[str, ...]:
        if "sweep.metric" in self._swept:
            raise UserError("sweep.metric: of all jobs the same; several are a list: sweep.metric=[…,…]")
        names = self._options().names()
        for name in names if self._config.task.name == "generate" else ():
            if name not in known_metrics():
                raise UserError(f"sweep.metric: unknown metric {name!r}{did_you_mean(name, known_metrics())}")
            if name == SPEEDUP and not self._config.compare and "compare" not in self._swept:
                raise UserError("sweep.metric: speedup is over plain decoding, which compare=true runs too; add it")
        return names

    def _options(self) -> SweepSettings:
        config = OmegaConf.to_container(OmegaConf.masked_copy(self._config, "sweep"), resolve=True)
        assert isinstance(config, dict)
        return sweep_of({str(key): value for key, value in config.items()})

    def _checked_resume(self) -> bool:
        if "sweep.resume" in self._swept:
            raise UserError("sweep.resume: of all jobs the same; true or false")
        if not self._options().resume:
            return False
        if self._plugins["sweeper"] != EXHAUSTIVE:
            raise UserError(
                f"sweep.resume: hydra/sweeper={self._plugins['sweeper']} chooses its jobs anew, so there are none to "
                "resume; leave it out"
            )
        if directory_option(self._config, self._overrides, "hydra.sweep.dir") is None and not self._config.output_dir:
            raise UserError("sweep.resume: say which sweep is to go on: output_dir=…, its directory")
        return True

    def _check_common(self) -> None:
        """What is wrong with every job is said once, and before the first of them."""
        common = OmegaConf.masked_copy(self._config, ["sampling", *RUN_OPTIONS])
        values = OmegaConf.to_container(common, resolve=True)
        assert isinstance(values, dict)
        check_common({str(key): value for key, value in values.items()}, self._swept)

    def _checked_directions(self) -> tuple[str, ...]:
        """The sweeper's direction for each metric; none where it has none, or tries everything."""
        sweeper = self._config.hydra.sweeper
        if self._plugins["sweeper"] == EXHAUSTIVE:
            return ()
        if not self._metrics:
            raise UserError(
                f"sweep.metric: hydra/sweeper={self._plugins['sweeper']} needs a number to optimise; say "
                "which, such as sweep.metric=tokens_per_second"
            )
        if sweeper.get("storage") is not None:
            # Optuna 2's databases need SQLAlchemy 1, and its Redis and CMA-ES keep pickles in them
            raise UserError("hydra.sweeper.storage: not offered; a study lasts as long as its sweep")
        return directions_of(sweeper, self._metrics)

    def _make_directory(self) -> Path:
        option = "hydra.sweep.dir"
        directory = directory_option(self._config, self._overrides, option)
        if directory is None:
            option, directory = "output_dir", self._config.output_dir
        return expanded(str(directory), option) if directory else default_output_dir("sweep")

    def _summarise(self, whole: bool) -> list[int]:
        """Write summary.json, print the table, and return the jobs' exit statuses.

        ``whole``: all jobs ran. Where they did not, those of an earlier sweep that did not run again stay in the file.
        """
        outcomes = read_outcomes(self._directory)
        best = best_of(outcomes, self._directions)
        jobs = [outcome.as_json() for outcome in outcomes]
        earlier = [] if whole else jobs_not_run_again(self._directory, outcomes)
        summary: dict[str, Any] = {"jobs": [*jobs, *earlier]}
        if self._directions:
            summary["best"] = [
                {"job": outcome.name, "output_dir": outcome.output_dir, "metric": outcome.metric} for outcome in best
            ]
        write_json(self._directory / SUMMARY, summary)
        (self._directory / OUTCOMES).unlink(missing_ok=True)
        forget_summary(self._directory)
        rows = []
        added = [name for name in self._metrics if name not in IN_TABLE]
        compared = SPEEDUP not in added and any(job["speedup"] is not None for job in jobs)
        for outcome, job in zip(outcomes, jobs, strict=True):
            values = [number((outcome.metric or {}).get(name)) for name in added]
            result = RESULTS.get(outcome.status, "failed") + (", best" if outcome in best else "")
            ratio = [number(job["speedup"], 2, "×")] * compared
            rows.append([outcome.name, *summary_cells(job["summary"]), *ratio, *values, result])
        title = f"{counted(len(outcomes), 'job')} in {self._directory}"
        print_table(title, ["job", *SUMMARY_COLUMNS, *["ratio"] * compared, *added, "result"], rows)
        print_plugins_of_jobs(jobs)
        if earlier:
            say(f"of an earlier sweep {len(earlier)} did not run again; {SUMMARY} has them as they were, as earlier")
        return [outcome.status for outcome in outcomes]


def _is_ours(error: BaseException) -> bool:
    """Whether ``error`` was raised in code of spec-sdk: a bug, and not what a sweeper says of its options."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).partition(".")[0] == "spec_sdk"
