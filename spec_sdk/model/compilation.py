"""Whether a run compiles its models: asked for, refused, or where it pays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

from spec_sdk.errors import UserError
from spec_sdk.model import compiler
from spec_sdk.model.compiled_decoder import compile_decoder, graphs_to_compile
from spec_sdk.model.decoder import Decoder

Choice = Literal["auto", "true", "false"]
CHOICES: tuple[Choice, ...] = ("auto", "true", "false")
ASSUMED_SECONDS = 30.0
"""What compiling a graph takes, until this machine has done it once."""
SECONDS_TO_LOAD = 0.2
"""What loading one takes that is on disk."""
SECONDS_A_LAYER = 1e-4
"""What a compiled layer saves in a pass of a few rows: about ten small operations and their calls from Python."""
MARGIN = 2.0
"""A run must save so many times what compiling takes, since only one of its estimates is measured."""


def choice_of(value: Any, where: str) -> Choice:
    """``auto``, ``true`` or ``false``, from an option. Raises UserError for anything else."""
    for choice in CHOICES:
        if str(value).lower() == choice:
            return choice
    raise UserError(f"{where}: {value!r} must be auto, true or false")


class Compilation:
    """Compiles the decoders of a run, and says so on stderr.

    ``tokens``: how many the run is expected to make; None: not known. ``auto`` compiles where graphs are on disk
    already or the run is long enough to earn them, and never where the length is unknown.
    """

    def __init__(self, choice: Choice, where: str) -> None:
        self.choice = choice
        self.where = where
        self.tokens: int | None = None
        self.compiler = compiler.Compiler()
        self.eager_because = ""

    def of(self, decoder: Decoder) -> Decoder:
        """The decoder, compiled if it shall be. Raises UserError if it must be and cannot."""
        if self.choice == "false":
            return decoder
        if self.choice == "auto" and (why := self.not_worth_it(decoder)):
            self.eager_because = why
            return decoder
        before = self.compiler.compiled, self.compiler.seconds
        fault = compiler.trial() if graphs_to_compile(decoder) and not self.compiler.compiled else None
        if fault is None:
            decoder, fault = compile_decoder(decoder, self.compiler)
        if fault is not None:
            if self.choice == "true" and self.compiler.graphs == 0:
                raise UserError(f"{self.where}=true: nothing can be compiled here: {fault}; use {self.where}=false")
            self.eager_because = fault
        new, seconds = self.compiler.compiled - before[0], self.compiler.seconds - before[1]
        if new:
            compiler.keep_seconds(seconds / new)
            print(f"compiled {new} graphs in {seconds:.0f} s; kept in {compiler.directory()}", file=sys.stderr)
        return decoder

    def not_worth_it(self, decoder: Decoder) -> str | None:
        """Why ``auto`` does not compile a model; None if it does."""
        if self.tokens is None:
            return "the length of the run is not known"
        missing = graphs_to_compile(decoder)
        if missing and (fault := compiler.no_compiler()):
            return fault
        seconds = SECONDS_TO_LOAD + missing * (compiler.seconds_a_graph() or ASSUMED_SECONDS)
        saved = self.tokens * decoder.layers * SECONDS_A_LAYER
        if saved < MARGIN * seconds:
            return f"{self.tokens} tokens would save about {saved:.1f} s, compiling takes {seconds:.1f} s"
        return None

    def report(self) -> Mapping[str, Any]:
        """For a run's metrics."""
        made = {"graphs": self.compiler.graphs, "seconds": round(self.compiler.seconds, 3)}
        return {**made, "eager_because": self.eager_because} if self.eager_because else made
