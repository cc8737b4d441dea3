"""Where files are kept, what is free there, and whether models are at hand or can be downloaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from huggingface_hub import constants

from spec_sdk.contracts import Finding
from spec_sdk.diagnosis.machine import disk
from spec_sdk.errors import UserError
from spec_sdk.files import unwritable
from spec_sdk.kept_files import KeptFiles
from spec_sdk.model.source_cache import cache_root
from spec_sdk.model.source_hub import HubUnreachable, cached_snapshot, check_reachable
from spec_sdk.model.source_wheel import DEFAULT_REFERENCE, default_entry
from spec_sdk.registry import Registry
from spec_sdk.tables import size

PATIENCE_S = 5.0
"""Seconds that the hub has to answer."""
OTHER_CACHE = "set SPEC_SDK_CACHE to a directory that you may write to"


def cache(registry: Registry) -> Iterator[Finding]:
    """The cache of converted models, native kernels and cost curves: where, how large, and whether it can be used."""
    try:
        root = cache_root()
    except RuntimeError as error:
        # no home directory
        yield Finding("cache", str(error), OTHER_CACHE)
        return
    folders: list[KeptFiles] = [folder for each in registry.hook.spec_sdk_kept_files() for folder in each]
    try:
        kept = sum(entry.nbytes for folder in folders for entry in folder.entries())
        text = f"{root}: {size(kept)}"
    except OSError as error:
        text = f"{root} cannot be read ({error.strerror or error})"
    fault = unwritable(root)
    yield Finding("cache", f"{text}; {fault}" if fault else text, OTHER_CACHE if fault else "")
    yield disk("  disk", root)


def outputs() -> Iterator[Finding]:
    """Where runs write."""
    here = Path.cwd()
    fault = unwritable(here)
    advice = "set output_dir=… to a directory that you may write to" if fault else ""
    yield Finding("results", fault or f"outputs/ in {here}", advice)
    yield disk("  disk", here)


def hub() -> Iterator[Finding]:
    """The Hugging Face hub: its local cache, and whether it answers. To be offline is no fault."""
    place = Path(constants.HF_HUB_CACHE)
    yield Finding("hub cache", f"{place}{'' if place.is_dir() else ', which is not there yet'}")
    answer = within(PATIENCE_S, lambda: check_reachable(DEFAULT_REFERENCE))
    yield Finding("hub", f"{constants.ENDPOINT}: {answer}")


def within(seconds: float, ask: Callable[[], None]) -> str:
    """How ``ask`` went, in a few words, after as many seconds at most; what it goes on with is left behind."""
    said: list[str] = []

    def run() -> None:
        try:
            ask()
            said.append("answers")
        except HubUnreachable as error:
            said.append(f"does not answer ({error}); what is not at hand cannot be downloaded")
        except UserError as error:
            said.append(f"answers: {error}")

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(seconds)
    return said[0] if said else f"has not answered in {seconds:.0f} s; what is not at hand cannot be downloaded"


def target(reference: str) -> Iterator[Finding]:
    """Whether the target of the run is on this machine."""
    yield Finding("model.target", _where(reference))


def _where(reference: str) -> str:
    path = Path(reference).expanduser()
    if path.exists():
        return f"{reference}: a {'directory' if path.is_dir() else 'file'} on this machine"
    try:
        found = cached_snapshot(reference)
        if found is None and reference == DEFAULT_REFERENCE:
            found = default_entry().find()
    except (UserError, RuntimeError) as error:
        return str(error)
    if found is not None:
        return f"{reference}: at hand, {found}"
    return f"{reference}: not on this machine; the first run downloads it"
