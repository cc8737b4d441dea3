"""A job of a sweep, as Hydra's launchers call it: in this process, or pickled into another."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from spec_sdk.cli.earlier_sweep import digest_of, forget_metrics, is_of, set_aside_metrics, set_aside_summary
from spec_sdk.cli.jobs import EXIT_CLOSED_PIPE, EXIT_OK, EXIT_TERMINATED, RESULTS, report, run_task, status_of
from spec_sdk.cli.objective import values_of
from spec_sdk.cli.outcomes import Outcome
from spec_sdk.cli.sweep_end import JobEnd, SweepEnd
from spec_sdk.config.chosen_pipeline import all_overrides, settle, task_overrides
from spec_sdk.config.composing import settings_of
from spec_sdk.config.overrides import parse
from spec_sdk.errors import UserError
from spec_sdk.files import remove_empty

LONGEST_NAME = 120


class JobFailed(Exception):
    """A job that failed, and was told of and counted already: a sweeper that optimises takes it for a failed trial."""


@dataclass(frozen=True)
class SweepJob:
    """What every job of a sweep does with its config; it keeps how it ended in the sweep's file of outcomes.

    ``directory``: the sweep's; ``started_in``: what relative paths are relative to. ``swept``: the options that differ
    from job to job, which name it. ``own_subdirectories``: the jobs write where ``hydra.sweep.subdir`` says.
    ``metrics``: what a sweeper is given of a job; ``optimised``: by a sweeper, to which a failed job is an exception.
    ``end``: how the jobs hear of the sweep's end. ``finished``: jobs of an earlier sweep that stand as they are, as
    :func:`finished_jobs` has them.
    """

    directory: Path
    started_in: Path
    swept: frozenset[str]
    own_subdirectories: bool
    metrics: tuple[str, ...]
    optimised: bool
    end: SweepEnd
    finished: Mapping[str, tuple[str, str | None]]

    def __call__(self, config: DictConfig) -> float | list[float] | None:
        """Run one job. Returns its metric, or a list of several; None if there is none to return.

        Raises JobFailed for a failed job if the sweep is ``optimised``, and what ends the sweep: an interrupt, or a
        closed stdout.
        """
        with self.end.of_job() as end:
            return None if end.ended else self._job(config, end)

    def _job(self, config: DictConfig, end: JobEnd) -> float | list[float] | None:
        os.chdir(self.started_in)
        hydra = cast(DictConfig, HydraConfig.get())
        swept = [o for o in parse(task_overrides(hydra)) if o.key_or_group in self.swept]
        name = ",".join(str(o.input_line).lstrip("+") for o in swept) or str(hydra.job.num)
        print(f"job {hydra.job.num}: {name}", file=sys.stderr)
        output_dir = self._output_dir(hydra, name)
        digest = digest_of(OmegaConf.select(config, "prompt_file", throw_on_resolution_failure=False))
        outcome = Outcome(hydra.job.num, name, EXIT_OK, None, str(output_dir), prompt_file_sha256=digest)
        set_aside_summary(self.directory)
        try:
            self._run(config, hydra, output_dir, outcome, end)
        except Exception as error:
            outcome.status = status_of(error)
            if outcome.status == EXIT_CLOSED_PIPE:
                raise
            outcome.error = report(error)
            remove_empty([output_dir])
        except (KeyboardInterrupt, SystemExit) as error:
            # a launcher that ends the jobs' processes may raise SystemExit in them
            outcome.status = EXIT_TERMINATED if isinstance(error, SystemExit) else status_of(error)
            outcome.error = RESULTS[outcome.status]
            if end.ended:
                # the sweep's process raises it; of an exception in here a launcher might kill jobs that have yet to end
                return None
            raise
        finally:
            end.deaf()
            outcome.append(self.directory)
        if outcome.status != EXIT_OK and self.optimised:
            raise JobFailed(outcome.error or f"exit status {outcome.status}")
        values = [*(outcome.metric or {}).values()]
        return values[0] if len(values) == 1 else values or None

    def _run(self, config: DictConfig, hydra: DictConfig, output_dir: Path, outcome: Outcome, end: JobEnd) -> None:
        if not output_dir.absolute().resolve().is_relative_to(self.directory.absolute().resolve()):
            raise UserError(f"hydra.sweep.subdir: {output_dir} is not below the sweep's directory")
        if self._stands(config, hydra, output_dir, outcome):
            print(f"job {outcome.number} ended in an earlier sweep", file=sys.stderr)
        else:
            set_aside_metrics(output_dir)
            settle(config, hydra)
            outcome.status = run_task(config, all_overrides(hydra), output_dir, end.hear)
        if outcome.status == EXIT_OK:
            forget_metrics(output_dir)
        if outcome.status == EXIT_OK and self.metrics:
            outcome.metric = values_of(output_dir, self.metrics)

    def _stands(self, config: DictConfig, hydra: DictConfig, output_dir: Path, outcome: Outcome) -> bool:
        if self.finished.get(outcome.name) != (output_dir.name, outcome.prompt_file_sha256):
            return False
        settled = copy.deepcopy(config)
        settle(settled, hydra)
        return is_of(output_dir, settings_of(settled).resolved)

    def _output_dir(self, hydra: DictConfig, name: str) -> Path:
        if not self.own_subdirectories:
            return self.directory / directory_name(hydra.job.num, name)
        return self.directory / os.path.relpath(hydra.runtime.output_dir, self.directory)


def directory_name(number: int, name: str) -> str:
    """A job's directory: its number and its overrides, without characters that a shell or a file system minds."""
    return f"{number}-{re.sub(r'[^A-Za-z0-9._=,+-]+', '_', name)}"[:LONGEST_NAME]
