"""The command line: read it, compose the config, run the task (or a sweep of tasks), turn what happens into a status.

Exit status: 0 done, 1 a bug (with its traceback), 2 bad input (one line), 130 interrupted (Ctrl-C), 141 stdout was
closed, 143 terminated (SIGTERM).
"""

from __future__ import annotations

import io
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_sdk import __version__
from spec_sdk.cli.composing import compose_config, explain, is_composition_error
from spec_sdk.cli.jobs import EXIT_CLOSED_PIPE, EXIT_OK, default_output_dir, end_on_sigterm, report, run_task, status_of
from spec_sdk.cli.overrides import quote_texts
from spec_sdk.errors import UserError
from spec_sdk.search_path import register_search_path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (``sys.argv[1:]`` by default) and return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    end_on_sigterm()
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt) as error:
        report(error)
        status = status_of(error)
        if status == EXIT_CLOSED_PIPE:
            # the interpreter flushes stdout on exit, which would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status


def _run(argv: list[str]) -> int:
    register_search_path()
    OmegaConf.register_new_resolver("spec_sdk.sweep_dir", lambda _: str(default_output_dir("sweep")), replace=True)
    if "--version" in argv:
        print(f"spec-sdk {__version__}")
        return EXIT_OK
    parser = get_args_parser()
    args = _parse(parser, argv)
    if args.help:
        from spec_sdk.cli.help import help_text

        print(help_text())
        return EXIT_OK
    args.overrides = quote_texts(args.overrides, sweep=args.multirun)
    if args.config_dir is not None:
        args.overrides.append(_search_path_override(args.config_dir))
    try:
        if args.multirun:
            from spec_sdk.cli.sweep import run_sweep

            return run_sweep(parser, args)
        if args.cfg == "job":
            return _show_config(args)
        if args.cfg or args.info or args.hydra_help or args.shell_completion:
            if args.shell_completion and not any("=" in override for override in args.overrides):
                raise UserError("--shell-completion: say install=bash, uninstall=bash or query=bash")
            from spec_sdk.cli.sweep import run_hydra

            run_hydra(parser, args, lambda _: None)
            return EXIT_OK
        config = compose_config(args.overrides)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise explain(error, args.overrides) from error
    except ValueError as error:
        if not is_composition_error(error):
            raise
        raise explain(error, args.overrides) from error
    return run_task(config)


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


def _search_path_override(directory: str) -> str:
    path = Path(directory).expanduser().absolute()
    if not path.is_dir():
        raise UserError(f"--config-dir: {directory} is not a directory")
    return f'hydra.searchpath=["file://{path}"]'


def _show_config(args: Namespace) -> int:
    config = compose_config(args.overrides)
    shown = OmegaConf.select(config, args.package) if args.package not in (None, "_global_") else config
    if shown is None:
        raise UserError(f"--package: there is no '{args.package}' in the config")
    print(OmegaConf.to_yaml(shown, resolve=args.resolve) if OmegaConf.is_config(shown) else shown, end="")
    return EXIT_OK
