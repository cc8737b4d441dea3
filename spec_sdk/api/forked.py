"""Processes that were forked from one with an engine: of torch's threads they have none."""

from __future__ import annotations

import functools
import os

import torch

from spec_sdk.errors import UserError

_threads_at_fork = 1


@functools.cache
def note_forks() -> None:
    """From now on :func:`check_threads` refuses in processes that are forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_note)


def _note() -> None:
    global _threads_at_fork
    _threads_at_fork = torch.get_num_threads()


def check_threads() -> None:
    """Raise UserError where torch would wait for ever for threads that a fork left behind."""
    if min(_threads_at_fork, torch.get_num_threads()) > 1:
        raise UserError(
            "this process was forked from one with an engine, without torch's threads, for which it would wait for "
            "ever: start processes by spawn (multiprocessing.get_context('spawn')) and make an engine in each, or "
            "call torch.set_num_threads(1) in this one"
        )
