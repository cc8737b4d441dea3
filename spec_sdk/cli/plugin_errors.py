"""What the code of an installed plugin raised, in one line: whose, which of its methods, and where.

Read from the traceback of what ended a run, so that no call of a plugin costs anything for it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection
from types import FrameType

from spec_sdk.errors import cause_of
from spec_sdk.installed import OWN_DISTRIBUTION

SHOWS_TRACEBACKS = "HYDRA_FULL_ERROR"
"""Hydra's own variable for the same: not 0 or empty, and an exception is shown with its traceback."""
NOTE = "in "
"""What a note that names a plugin begins with (:class:`spec_sdk.errors.CallOf`)."""


def tracebacks_wanted() -> bool:
    """Whether the environment asks for the traceback of what a plugin raised."""
    return os.environ.get(SHOWS_TRACEBACKS, "0") not in ("", "0")


def plugin_error(error: BaseException) -> str | None:
    """The line, if ``error`` was raised in the code of another package's plugin, or in a library that it called.

    None for what our own code raised, even where a plugin called that: it may be a bug of ours.
    """
    if not isinstance(error, Exception) or "spec_sdk.registry" not in sys.modules:
        return None
    from spec_sdk.load_faults import load_fault

    raised = cause_of(error)
    ours, others = _packages()
    frames = [frame for frame, _ in traceback.walk_tb(raised.__traceback__)]
    behind_ours = max((i + 1 for i, frame in enumerate(frames) if _package(frame) in ours), default=0)
    theirs = [frame for frame in frames[behind_ours:] if _package(frame) in others]
    if not theirs:
        return None
    called = theirs[0]
    said = load_fault(raised, _package(called))
    return f"{_whose(called, raised)}: its {called.f_code.co_name} raised {said}; {SHOWS_TRACEBACKS}=1 shows more"


def _packages() -> tuple[Collection[str], Collection[str]]:
    """The packages of spec-sdk, and those of other distributions that offer plugins."""
    from spec_sdk.contracts import PLUGIN_KINDS
    from spec_sdk.registry import Registry

    registry = Registry.discover()
    offers = [offer for kind in PLUGIN_KINDS for offer in registry.offers(kind)]
    ours = {_top(offer.plugin.__module__) for offer in offers if offer.package == OWN_DISTRIBUTION} | {"spec_sdk"}
    return ours, {_top(offer.plugin.__module__) for offer in offers} - ours


def _whose(called: FrameType, raised: Exception) -> str:
    from spec_sdk.plugin import Plugin

    plugin = called.f_locals.get("self")
    if isinstance(plugin, Plugin):
        return f"{plugin.kind} {plugin.name!r}"
    # a matcher, or what a policy has for a request
    named = [note.removeprefix(NOTE) for note in getattr(raised, "__notes__", ()) if note.startswith(NOTE)]
    return named[0] if named else f"package {_package(called)!r}"


def _package(frame: FrameType) -> str:
    return _top(str(frame.f_globals.get("__name__")))


def _top(module: str) -> str:
    return module.partition(".")[0]
