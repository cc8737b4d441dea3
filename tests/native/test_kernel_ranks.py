"""What ends a kernel's waiting for another rank is raised behind the kernel."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spec_sdk_backends.mapped_memory import Patience
from spec_sdk_backends.native.ranks import KernelRanks


def ranks(look: Any = lambda: None) -> KernelRanks:
    memory: Any = SimpleNamespace(rank=0, size=2, addresses=(0, 0), number=0, patience=Patience(look, 0.5, 60.0))
    return KernelRanks(memory)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interruption_of_the_look() -> None:
    of_kernel = ranks(interrupt)
    with pytest.raises(KeyboardInterrupt), of_kernel.lent():
        assert of_kernel._look(1.0)


def test_an_interruption_before_the_look_begins() -> None:
    """Python cannot raise it through the kernel, and would print it; the next look ends the waiting."""
    before, of_kernel = sys.unraisablehook, ranks()
    with pytest.raises(KeyboardInterrupt), of_kernel.lent():
        assert not of_kernel._look(1.0)
        sys.unraisablehook(SimpleNamespace(exc_value=KeyboardInterrupt()))
        assert of_kernel._look(1.0)
    assert sys.unraisablehook is before
