"""``task=check plugin=NAME``: does an installed plugin keep the promises of its kind?"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_sdk.config.checked_plugin import find_plugin
from spec_sdk.contracts import Task, option
from spec_sdk.errors import PluginFault, UserError, cause_of, in_a_line, message_of
from spec_sdk.registry import Registry
from spec_sdk.settings import PLUGIN_NODES, Settings

if TYPE_CHECKING:
    from spec_sdk.testing.check import Check


@dataclass
class CheckConfig:
    """Options of ``task=check``."""

    draws: int | None = option(
        None, "random draws, or answers, of each check", minimum=1, means={None: "the kit's own counts"}
    )
    options: Any = option(None, "of a task that is checked: its options, {cycles: 1}")


class CheckPlugin(Task):
    """Runs the conformance kit on an installed plugin, with the options of the run: a line for every check."""

    name = "check"
    Config = CheckConfig
    config: CheckConfig

    def run(self, app: Settings) -> int:
        """A line per check goes to stdout; returns 1 if any fails. Raises UserError for a plugin that is not known."""
        from spec_sdk.testing.plugins import Subject, checks_of

        registry = Registry.discover()
        if app.plugin is None:
            raise UserError("plugin: say which plugin to check, plugin=NAME (task=plugins lists them)")
        kind, name = find_plugin(app.plugin, registry)
        _check_chosen(app, registry, kind, name)
        options = self.config.options or {}
        if not isinstance(options, Mapping):
            raise UserError(f"task.options: {options!r} must be the options of the task, {{name: value}}")
        subject = Subject(kind, name, app, registry, self.config.draws, options)
        found = []
        offer = registry.offer(kind, name)
        if not app.json:
            package = f"{offer.package} {offer.version}".strip()
            print(f"{kind} {name} ({package})", flush=True)
        # JSON is all that stdout gets, whatever a plugin prints
        with contextlib.redirect_stdout(sys.stderr) if app.json else contextlib.nullcontext():
            checks = checks_of(subject)
        for check in checks:
            with contextlib.redirect_stdout(sys.stderr) if app.json else contextlib.nullcontext():
                passed, words = outcome(check)
            found.append({"check": check.promise, "passed": passed, "evidence": words})
            if not app.json:
                said = f": {words}" if passed is False else f" ({words})" if words else ""
                print(f"{_WORDS[passed]}  {check.promise}{said}", flush=True)
        verdicts = [each["passed"] for each in found]
        skipped = verdicts.count(None)
        if app.json:
            plugin = {"kind": kind, "name": name, "package": offer.package, "version": offer.version}
            print(json.dumps({"plugin": plugin, "checks": found}, indent=2, ensure_ascii=False))
        else:
            besides = f", {skipped} skipped" if skipped else ""
            print(f"{verdicts.count(True)} of {len(found)} checks passed{besides}", file=sys.stderr)
        return 1 if False in verdicts else 0


_WORDS = {True: "pass", False: "FAIL", None: "skip"}


def outcome(check: Check) -> tuple[bool | None, str]:
    """Whether a check passes, None if it looked at nothing, and what is to be said of it in one line.

    Whatever a plugin raises while it is checked is its fault, and is named with the line that raised it.
    """
    from spec_sdk.testing.check import Skipped

    try:
        words = check.run() or ""
        return None if isinstance(words, Skipped) else True, words
    except AssertionError as error:
        return False, message_of(error) if str(error) else "an assertion of the plugin's own failed"
    except (Exception, SystemExit) as raised:  # a plugin under test may raise anything
        fault = cause_of(raised)
        if isinstance(fault, PluginFault):
            # raised where it was found, not where the plugin is wrong
            return False, str(fault)
        where = traceback.extract_tb(fault.__traceback__)[-1]
        return False, f"{in_a_line(fault)} ({Path(where.filename).name}, line {where.lineno})"


def _check_chosen(app: Settings, registry: Registry, kind: str, name: str) -> None:
    """Raise UserError unless the run's options are those of the plugin to check."""
    if kind == "task":
        return
    if kind in PLUGIN_NODES:
        chosen = getattr(app, kind).get("name")
        if chosen in registry.names(kind) and registry.get(kind, chosen).name != name:
            raise UserError(f"plugin: {kind} '{name}' is to be checked, and {kind}={chosen} is chosen; leave that out")
        return
    parts = registry.get("drafter", str(app.drafter.get("name"))).parts
    option = next((option for option, of_kind in parts.items() if of_kind == kind), None)
    if option is None or app.drafter.get(option) != name:
        raise UserError(
            f"plugin: {kind} '{name}' is a part of drafters, and drafter '{app.drafter.get('name')}' has another one; "
            f"leave drafter= out, or choose drafter.{option or kind}={name}"
        )
