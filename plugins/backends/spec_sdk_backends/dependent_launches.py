"""Launches that begin while the one before ends (programmatic dependent launch, since compute capability 9.0).

A kernel with OVERLAPPED calls :func:`wait_for_the_launch_before` before it reads or writes what another launch may
write or read. What it does until then, such as asking for weights, costs no time.

A launch of any other kernel waits for all of the ones before it. But one that overlaps may begin when the programs of
such a launch have ended, before what they wrote is seen, and the next one that overlaps with it. So what a launch has
written may be read before the wait only if another one that does not overlap lies between: a pass's inputs and its
tables of rotations, which are there before its tokens are embedded, and weights.
"""

# triton's compiler reads annotations and knows only its own
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import functools
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[import-untyped]
except ImportError:
    # of triton before 3.4
    gdc_launch_dependents = gdc_wait = None

SINCE = 9
"""The compute capability."""


APART: dict[str, Any] = {"OVERLAPPED": False}
"""What it is launched with where what it reads early may just have been written."""


@functools.cache
def overlapped(device: torch.device) -> dict[str, Any]:
    """What such a kernel is launched with there besides."""
    if gdc_wait is None or device.type != "cuda" or torch.cuda.get_device_properties(device).major < SINCE:
        return APART
    return {"OVERLAPPED": True, "launch_pdl": True}


@triton.jit
def begin_the_next_launch(OVERLAPPED: tl.constexpr):
    """Lets the next launch begin as soon as all programs of this one have come here."""
    if OVERLAPPED:
        gdc_launch_dependents()


@triton.jit
def wait_for_the_launch_before(OVERLAPPED: tl.constexpr):
    """Lets the next launch begin, and waits for the one before; nothing to do where launches do not overlap."""
    if OVERLAPPED:
        gdc_launch_dependents()
        gdc_wait()
