"""``task=watch``: an answer as it comes, and the token tree of every step, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_sdk.contracts import Task, option
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.tasks.generate import prompts_to_answer

if TYPE_CHECKING:
    from spec_sdk.api.step import Step

ENDLESS = 10_000
"""Columns that no line fills."""


@dataclass
class WatchConfig:
    """Options of ``task=watch``."""

    pause: float = option(0.0, "seconds to rest after every step, so that it can be followed", minimum=0)


class Watch(Task):
    """Shows an answer as it comes, each step with its token tree and what was accepted of it."""

    name = "watch"
    Config = WatchConfig
    config: WatchConfig
    without = ("compare",)

    def run(self, app: Settings) -> int:
        """To stdout: a picture that changes where that is a terminal, else the steps one below the other. The first
        prompt is taken. Returns 0."""
        from spec_sdk.api.engine import Engine
        from spec_sdk.model_inputs import model_inputs
        from spec_sdk.pipeline import build_pipeline, joined_backend

        registry = Registry.discover()
        asked = prompts_to_answer(app)[:1]
        pipeline = build_pipeline(app, registry, joined_backend(app, registry))
        prompt = model_inputs(pipeline, asked, app)[0]
        with closing(Engine(pipeline, app).stream(prompt.tokens, trace=True, **prompt.options)) as parts:
            show(self._slowly(step for part in parts for step in part.steps))
        return 0

    def _slowly(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            yield step
            time.sleep(self.config.pause)


def show(steps: Iterator[Step]) -> None:
    """Steps as they come, and at the end the answer and figures of all."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from spec_sdk.step_drawing import answer_drawing, figures, step_drawing

    console = Console(file=sys.stdout, highlight=False)
    seen: list[Step] = []
    if not console.is_terminal:
        # lines as long as they are: whoever reads a file has its own width
        console.width = ENDLESS
        for step in steps:
            seen.append(step)
            console.print(step_drawing(step))
    else:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for step in steps:
                seen.append(step)
                told = (answer_drawing(seen, True), Text(), figures(seen), Text(), step_drawing(step))
                live.update(Group(*told), refresh=True)
            live.update(Text())
    console.print(Text(), answer_drawing(seen, console.is_terminal), Text(), figures(seen), sep="\n")
