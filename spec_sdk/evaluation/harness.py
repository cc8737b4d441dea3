"""The harness itself: whether it is there, its quiet, and what it raises told in one line."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator

from spec_sdk.errors import UserError, in_a_line, message_of


def require() -> None:
    """Raise UserError where the harness is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("task=eval: lm-eval is not installed: pip install 'spec-sdk[eval]'")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The harness tells of every step; what matters comes with the results. What it prints goes to stderr."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "evaluate")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def told(where: str) -> Iterator[None]:
    """Raise what the harness, a benchmark's own code or its data raise as a UserError that begins with ``where``.

    What comes out of the model is no fault of a benchmark's, and is raised as it is.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or _is_of_model(error):
            raise
        raise UserError(f"{where}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What a benchmark failed with, and what to do about a package that is missing."""
    line, cause = in_a_line(error), error.__cause__
    if "antlr4-python3-runtime" in line:
        return "it needs antlr4-python3-runtime 4.11, and spec-sdk's Hydra an earlier one: use hendrycks_math"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"it needs the Python package {package}: pip install {package}"
    if isinstance(error, ConnectionError | FileNotFoundError):
        return f"its data cannot be had: {message_of(error)}"
    if isinstance(error, KeyError):
        return f"it asks for {message_of(error)}, which its data do not have"
    if isinstance(error, IndexError):
        return f"{line}: is one of its texts, choices or lists empty?"
    # such as datasets' errors, which say that something went wrong, and by their cause what
    return line + (f" ({in_a_line(cause)})" if isinstance(cause, Exception) else "")


def _is_of_model(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "spec_sdk.evaluation.language_model":
            return True
        trace = trace.tb_next
    return False
