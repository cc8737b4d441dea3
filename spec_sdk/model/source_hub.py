"""Models from the Hugging Face hub: what is in its local cache, else a download."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from spec_sdk.errors import UserError, first_line
from spec_sdk.model.source_directory import PICKLES, weights_are_complete
from spec_sdk.model.source_progress import interactive
from spec_sdk.say import say

# a checkpoint's top level only: sub-folders hold other formats, consolidated.* a second copy of the weights
_UNWANTED = ["*/*", "consolidated*"]
_PROBE_SECONDS = 4
# huggingface-hub's errors are OSErrors; the HTTP library's own (httpx or httpx2, whichever it uses) are not
_NETWORK_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    *(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError" and issubclass(base, Exception)),
)


@dataclass(frozen=True)
class Wanted:
    """What is downloaded of a repository: ``patterns`` of files; whether a directory has all of it; ``weights``, the
    endings of which one must be there, and the advice where none is.
    """

    patterns: tuple[str, ...]
    complete: Callable[[Path], bool]
    weights: tuple[str, ...] = (".safetensors",)
    advice: str = "choose a repository with .safetensors files"


MODEL = Wanted(("*.json", "*.safetensors", "*.jinja"), weights_are_complete)


class HubUnreachable(Exception):
    """No answer from the hub: no network, switched off, or down. The message says which."""


def cached_snapshot(repository: str, wanted: Wanted = MODEL) -> Path | None:
    """The snapshot in the hub's local cache if what is wanted of it is complete; no network.

    Raises UserError for an id that the hub would not allow.
    """
    path = local_snapshot(repository, wanted.patterns, _UNWANTED)
    return path if path is not None and wanted.complete(path) else None


def local_snapshot(repository: str, patterns: Sequence[str], unwanted: Sequence[str] = ()) -> Path | None:
    """What of these files is in the hub's local cache; no network. Raises UserError as :func:`cached_snapshot` does."""
    try:
        return Path(
            snapshot_download(
                repository, local_files_only=True, allow_patterns=[*patterns], ignore_patterns=[*unwanted]
            )
        )
    except HFValidationError as error:
        raise UserError(f"'{repository}' is no valid Hugging Face hub id: {first_line(error)}") from error
    except LocalEntryNotFoundError:
        return None


def downloaded_snapshot(repository: str, wanted: Wanted = MODEL) -> Path:
    """Download what is missing of a repository; progress on stderr.

    Raises HubUnreachable within a few seconds if the hub does not answer, and UserError for a repository that does not
    exist, is not accessible, or has no weights of the wanted kind.
    """
    _check_repository(repository, wanted)
    return downloaded_files(repository, wanted.patterns, _UNWANTED)


def downloaded_files(repository: str, patterns: Sequence[str], unwanted: Sequence[str] = ()) -> Path:
    """Download what is missing of these files; progress on stderr.

    Raises HubUnreachable, and UserError for a full disk.
    """
    say(f"downloading {repository} from the Hugging Face hub")
    try:
        with _bars_only_on_terminals():
            return Path(snapshot_download(repository, allow_patterns=[*patterns], ignore_patterns=[*unwanted]))
    except _NETWORK_ERRORS as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left for {repository} in the hub's cache; free some, or set HF_HOME") from error
        raise HubUnreachable(f"the download broke off: {first_line(error)}") from error


def check_reachable(repository: str) -> None:
    """Ask the hub about a repository with a model. Raises HubUnreachable if it does not answer, and UserError with what
    it answers if that is no.
    """
    _check_repository(repository, MODEL)


def repository_files(repository: str) -> set[str]:
    """Ask the hub, once and briefly, what a repository has.

    Raises HubUnreachable if it does not answer, and UserError for one that does not exist or is not accessible.
    """
    try:
        return {file.rfilename for file in HfApi().model_info(repository, timeout=_PROBE_SECONDS).siblings or ()}
    except GatedRepoError as error:
        raise UserError(
            f"'{repository}' is gated on the Hugging Face hub: ask for access on its page, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"'{repository}' is neither a local path nor a model on the Hugging Face hub (if it is private, run "
            "`hf auth login`)"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachable("offline mode (HF_HUB_OFFLINE)") from error
    except _NETWORK_ERRORS as error:
        raise HubUnreachable(first_line(error)) from error


def _check_repository(repository: str, wanted: Wanted) -> None:
    """Ask the hub whether there is a model to download."""
    files = repository_files(repository)
    if not any(name.endswith(wanted.weights) for name in files):
        if wanted is MODEL and any(name.endswith(".gguf") for name in files):
            raise UserError(f"'{repository}' has GGUF files: say which, as in {repository}:Q8_0")
        pickles = sorted(name for name in files if Path(name).suffix in PICKLES)
        what = f"only pickle weights ({pickles[0]}), which are not loaded" if pickles else "no safetensors weights"
        raise UserError(f"'{repository}' has {what}; {wanted.advice}")


@contextmanager
def _bars_only_on_terminals() -> Iterator[None]:
    if interactive() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
