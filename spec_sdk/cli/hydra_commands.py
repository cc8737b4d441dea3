"""What Hydra's own command line can do besides running: its config, its help, shell completion."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from spec_sdk.config.hydra_loader import CONFIG_NAME, config_loader
from spec_sdk.errors import UserError

PROGRAM = "spec_sdk"


def run_hydra_command(parser: ArgumentParser, args: Namespace) -> None:
    """``--hydra-help``, ``--cfg hydra`` or ``all``, ``--shell-completion`` or ``--info``, as ``args`` say.

    Raises UserError, and what Hydra raises if the config cannot be composed.
    """
    given = [args.hydra_help, bool(args.cfg), args.shell_completion, args.info is not None]
    if sum(given) > 1:
        raise UserError("--hydra-help, --cfg, --shell-completion and --info: give one of them")
    with config_loader() as loader:
        hydra = Hydra(PROGRAM, loader)
        GlobalHydra.instance().initialize(hydra)
        try:
            if args.hydra_help:
                hydra.hydra_help(CONFIG_NAME, parser, args)
            elif args.cfg:
                hydra.show_cfg(CONFIG_NAME, args.overrides, args.cfg, args.package, args.resolve)
            elif args.shell_completion:
                hydra.shell_completion(CONFIG_NAME, args.overrides)
            else:
                hydra.show_info(args.info, CONFIG_NAME, args.overrides)
        finally:
            GlobalHydra.instance().clear()
