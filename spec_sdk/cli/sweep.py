"""``--multirun``: Hydra expands the choices; here each job gets a directory, and all of them one table at the end."""

from __future__ import annotations

import functools
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from hydra._internal.utils import _run_hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from spec_sdk.cli.jobs import (
    EXIT_CLOSED_PIPE,
    EXIT_OK,
    RESULTS,
    Outcome,
    report,
    run_task,
    status_of,
    worst,
)
from spec_sdk.config.composing import CONFIG_NAME, default_output_dir, drop_stale_options, task_overrides
from spec_sdk.config.overrides import parse
from spec_sdk.files import expanded, missing_directories, remove_empty, write_json
from spec_sdk.installed import OWN_CONF
from spec_sdk.report import SUMMARY_COLUMNS, print_table, summary_cells

HYDRA_SWEEP_FILE = "multirun.yaml"
LONGEST_NAME = 120


class Sweep:
    """The jobs of one ``--multirun``. A job that fails is told of and counted; the others run all the same."""

    def __init__(self, overrides: Sequence[str]) -> None:
        self.outcomes: list[Outcome] = []
        self.directory: Path | None = None
        self._made: list[Path] = []
        self._swept = {o.key_or_group for o in parse(overrides) if o.is_sweep_override()}

    def run(self, hydra: Callable[[Callable[[DictConfig], None]], None]) -> int:
        """Let ``hydra`` call :meth:`job` for every combination. Returns the worst job's exit status.

        Raises what Hydra raises if the jobs cannot be composed; none has run then.
        """
        OmegaConf.register_new_resolver("spec_sdk.sweep_dir", self._sweep_dir, replace=True)
        try:
            hydra(self.job)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            if not self.outcomes:
                raise
            report(error)
        finally:
            if not self.outcomes:
                self._remove_traces()
        if self.outcomes:
            self._summarise()
        return worst([outcome.status for outcome in self.outcomes])

    def _sweep_dir(self, output_dir: str | None) -> str:
        if self.directory is None:
            self.directory = expanded(output_dir, "output_dir") if output_dir else default_output_dir("sweep")
            self._made = missing_directories(self.directory)
        return str(self.directory)

    def job(self, config: DictConfig) -> None:
        """Run one job. Only an interrupt or a closed stdout goes on to end the sweep."""
        hydra = cast(DictConfig, HydraConfig.get())
        swept = [o for o in parse(task_overrides(hydra)) if o.key_or_group in self._swept]
        name = ",".join(str(o.input_line).lstrip("+") for o in swept) or str(hydra.job.num)
        outcome = Outcome(name, EXIT_OK, None, Path(hydra.sweep.dir) / directory_name(hydra.job.num, name))
        self.outcomes.append(outcome)
        print(f"job {hydra.job.num}: {name}", file=sys.stderr)
        try:
            drop_stale_options(config, hydra, GlobalHydra.instance().config_loader())
            outcome.status = run_task(config, outcome.output_dir)
        except Exception as error:
            outcome.status = status_of(error)
            if outcome.status == EXIT_CLOSED_PIPE:
                raise
            outcome.error = report(error)
        except KeyboardInterrupt as error:
            outcome.status = status_of(error)
            outcome.error = RESULTS[outcome.status]
            raise

    def _summarise(self) -> None:
        jobs = [outcome.as_json() for outcome in self.outcomes]
        if self.directory is not None:
            write_json(self.directory / "summary.json", {"jobs": jobs})
        rows = [[job["job"], *summary_cells(job["summary"]), RESULTS.get(job["status"], "failed")] for job in jobs]
        print_table(f"{len(jobs)} jobs in {self.directory}", ["job", *SUMMARY_COLUMNS, "result"], rows)

    def _remove_traces(self) -> None:
        """Nothing ran, so nothing stays: Hydra writes the sweep's config before it knows that the jobs compose."""
        if self.directory is not None:
            (self.directory / HYDRA_SWEEP_FILE).unlink(missing_ok=True)
            remove_empty(self._made)


def directory_name(number: int, name: str) -> str:
    """A job's directory: its number and its overrides, without characters that a shell or a file system minds."""
    return f"{number}-{re.sub(r'[^A-Za-z0-9._=,+-]+', '_', name)}"[:LONGEST_NAME]


def run_sweep(parser: ArgumentParser, args: Namespace) -> int:
    """Run the sweep that ``args`` ask for, with Hydra's sweeper and launcher. Returns the worst job's exit status."""
    sweep = Sweep(args.overrides)
    return sweep.run(functools.partial(run_hydra, parser, args))


def run_hydra(parser: ArgumentParser, args: Namespace, job: Callable[[DictConfig], None]) -> None:
    """Hydra's own main, for what its public interface does not offer: sweeps, --info, --hydra-help, completion."""
    # without this Hydra prints its own reading of an exception and exits
    os.environ["HYDRA_FULL_ERROR"] = "1"
    _run_hydra(
        args=args,
        args_parser=parser,
        task_function=job,
        config_path=f"pkg://{OWN_CONF}",
        config_name=CONFIG_NAME,
    )
