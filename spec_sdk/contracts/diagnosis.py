"""What a backend says of itself on a machine: what it found there, and whether its kernels compute what they should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, in a line: what it is, and how it is here.

    ``advice``: what to change, or run, where it keeps something from working or makes it slow.
    """

    subject: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class SelfTest:
    """One operation beside its reference, on one kind of numbers.

    ``run`` returns the largest error, as a part of the largest value that was expected; AssertionError says what is
    wrong where that is no matter of size, and UserError why this machine or backend does not offer it. An error above
    ``limit`` is more than rounding explains.
    """

    operation: str
    numbers: str
    limit: float
    run: Callable[[], float]
