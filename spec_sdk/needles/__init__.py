"""The needle test (ALSpec, App. G): hashes and made-up facts at random places in a long text, then asked for.

:func:`build_haystack` makes the text and the questions, :func:`measure` asks a pipeline.
"""

from __future__ import annotations

from spec_sdk.needles.drawing import KINDS, Needle
from spec_sdk.needles.haystack import Haystack, Question, build_haystack
from spec_sdk.needles.measuring import Answer, Hits, NeedleScore, check_fit, check_room, measure
from spec_sdk.needles.scoring import holds

__all__ = [
    "KINDS",
    "Answer",
    "Haystack",
    "Hits",
    "Needle",
    "NeedleScore",
    "Question",
    "build_haystack",
    "check_fit",
    "check_room",
    "holds",
    "measure",
]
