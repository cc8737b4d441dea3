"""The command line: read it, compose the config, run the task (or a sweep of tasks), turn what happens into a status.

Exit status: 0 done, 1 a bug (with its traceback; in one line where a plugin returned what cannot be used, or its code
raised something), 2 bad input (one line), 3 another process of the run was lost (one line), 130 interrupted (Ctrl-C),
141 stdout was closed, 143 terminated (SIGTERM). Of several processes one tells what went wrong, and all end with its
status.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from spec_sdk.cli.jobs import (
    EXIT_CLOSED_PIPE,
    EXIT_OK,
    EXIT_USER_ERROR,
    end_on_sigterm,
    report,
    run_task,
    status_of,
)
from spec_sdk.cli.starting import starting, was_interrupted
from spec_sdk.config.chosen_backend import is_auto, with_chosen_backend
from spec_sdk.config.composing import compose_config, explained, reach_unlisted
from spec_sdk.config.overrides import parse, quote_texts, search_path_of, search_path_override
from spec_sdk.errors import EndedElsewhere, RankLost, UserError, did_you_mean
from spec_sdk.held_signals import ignore_sigterm
from spec_sdk.ranks import (
    check_launched,
    joined,
    launched_processes,
    launched_rank,
    only_the_leader_speaks,
    told_leader,
    under_launcher,
)
from spec_sdk.say import say
from spec_sdk.version import __version__

SHELLS = ("bash", "fish", "zsh")
"""Those that Hydra writes completions for."""
SEVERAL_PROCESSES = "accelerate"
"""The backend of a run that a launcher started, unless one is chosen."""
OF_SWEEPS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep.", "sweep.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (``sys.argv[1:]`` by default) and return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if launched_rank() == 0:
        if not starting():
            end_on_sigterm()
    else:
        # nothing to keep or to tell: a signal ends it even while it waits for the others
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with only_the_leader_speaks():
            status = _run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
        leave()
        return status
    except (Exception, KeyboardInterrupt) as error:
        if launched_processes() > 1 and launched_rank() == 0:
            ignore_sigterm()
        if isinstance(error, RankLost) and was_interrupted():
            # the others were, too, and ended first
            error = KeyboardInterrupt()
        status = settle(error)
        if status == EXIT_CLOSED_PIPE:
            # the interpreter flushes stdout on exit, which would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status


def settle(error: BaseException) -> int:
    """Tell of ``error``, unless another process of the run does; return the exit status."""
    ranks, status = joined(), status_of(error)
    has_met = ranks is not None and ranks.size > 1
    if ranks is not None and has_met:
        tells, status = ranks.settle(error, status)
    else:
        # who could not meet the others is alone with that
        tells = not 0 < launched_rank() < launched_processes() or isinstance(error, RankLost)
        if not tells and not isinstance(error, EndedElsewhere):
            tells = told_leader(status)
    if tells:
        if launched_rank() and not (has_met and status in (EXIT_OK, EXIT_USER_ERROR)):
            print(f"process {launched_rank()} of {launched_processes()}:", end=" ", file=sys.stderr, flush=True)
        report(error)
    return status


def leave() -> None:
    """Leave the group of ranks, if this process joined one."""
    ranks = joined()
    if ranks is not None:
        ranks.close()


def _run(argv: list[str]) -> int:
    if "--version" in argv:
        print(f"spec-sdk {__version__}")
        return EXIT_OK
    check_launched()
    _check_current_directory()
    parser = get_args_parser()
    args = _parse(parser, argv)
    search_path = [] if args.config_dir is None else [search_path_override(args.config_dir, "--config-dir")]
    if args.help:
        from spec_sdk.cli.help import help_text

        with explained(search_path):
            print(help_text(search_path_of(search_path)))
        return EXIT_OK
    args.overrides = quote_texts(args.overrides, sweep=args.multirun)
    if under_launcher():
        _for_several_processes(args)
    if args.shell_completion:
        _check_completion(args.overrides)
    args.overrides += search_path
    # Hydra would read the directory itself, without looking into what it loads
    args.config_dir = None
    with explained(args.overrides):
        if args.multirun:
            from spec_sdk.cli.sweep import run_sweep

            # jobs, which say what they are, take longer than a second to make
            say(f"spec-sdk {__version__}: sweep")
            args.overrides = with_chosen_backend(reach_unlisted(args.overrides))
            return run_sweep(args.overrides)
        if args.cfg == "job":
            return _show_config(args)
        if args.cfg or args.info or args.hydra_help or args.shell_completion:
            from spec_sdk.cli.hydra_commands import run_hydra_command

            run_hydra_command(parser, args)
            return EXIT_OK
        _refuse_options_of_sweeps(args.overrides)
        config = compose_config(args.overrides)
    return run_task(config, args.overrides)


def _check_current_directory() -> None:
    """Raise UserError where it was removed since it was entered."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current directory is not there any more; change to one that is") from error


def _parse(parser: ArgumentParser, argv: list[str]) -> Namespace:
    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")

    parser.error = refuse  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(argv)
    if args.experimental_rerun is not None:
        raise UserError("--experimental-rerun reads a pickle, which spec-sdk never does")
    if args.config_path is not None or args.config_name is not None:
        raise UserError("--config-path and --config-name are not offered; --config-dir adds a directory of YAML")
    return args


def _check_completion(overrides: Sequence[str]) -> None:
    """Raise UserError unless ``--shell-completion`` stands beside what Hydra expects, and nothing else."""
    command, _, shell = overrides[0].partition("=") if len(overrides) == 1 else ("", "", "")
    if command not in ("install", "uninstall", "query"):
        raise UserError("--shell-completion: say one of install=bash, uninstall=bash and query=bash, and nothing else")
    if shell not in SHELLS:
        raise UserError(f"--shell-completion: {command}: unknown shell '{shell}'{did_you_mean(shell, SHELLS)}")
    if command == "query" and "COMP_LINE" not in os.environ:
        raise UserError("--shell-completion: query is what the shell asks, with the line so far in COMP_LINE")


def _for_several_processes(args: Namespace) -> None:
    """What a launcher's processes are told: no sweeps, and the backend that joins them unless another is chosen."""
    if args.multirun:
        raise UserError("--multirun: a sweep runs in one process; start it as python -m spec_sdk, without a launcher")
    if is_auto(args.overrides):
        others = [override for override in args.overrides if override.partition("=")[0] != "backend"]
        args.overrides = [*others, f"backend={SEVERAL_PROCESSES}"]


def _refuse_options_of_sweeps(overrides: Sequence[str]) -> None:
    """Raise UserError for what a single run would leave unheard."""
    for key in (str(override.key_or_group) for override in parse(overrides)):
        if key.startswith(OF_SWEEPS):
            raise UserError(f"{key}: only a sweep has it; add --multirun")


def _show_config(args: Namespace) -> int:
    config = compose_config(args.overrides)
    shown = OmegaConf.select(config, args.package) if args.package not in (None, "_global_") else config
    if shown is None:
        raise UserError(f"--package: there is no '{args.package}' in the config")
    print(OmegaConf.to_yaml(shown, resolve=args.resolve) if OmegaConf.is_config(shown) else shown, end="")
    return EXIT_OK
