"""``task=show_tree``: what was guessed and what was kept, cycle by cycle, for people to look at."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.files import write_atomically
from spec_sdk.prompts import check_length
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.tasks.generate import follow, prompts_to_answer

if TYPE_CHECKING:
    from spec_sdk.model_inputs import ModelInput
    from spec_sdk.pipeline import Pipeline
    from spec_sdk.verdict_recorder import VerdictRecorder


@dataclass
class ShowTreeConfig:
    """Options of ``task=show_tree``."""

    cycles: int = option(3, "how many cycles to show, from the first on", minimum=1)


class ShowTree(Task):
    """Prints the token trees of a run's first cycles, accepted nodes marked, and writes them as SVG."""

    name = "show_tree"
    every_rank = True
    Config = ShowTreeConfig
    config: ShowTreeConfig
    without = ("compare",)

    def run(self, app: Settings) -> int:
        """Trees go to stdout, ``tree-<cycle>.svg`` into the run's directory; the first prompt is taken. Returns 0."""
        from spec_sdk.model_inputs import model_inputs
        from spec_sdk.pipeline import build_pipeline, joined_backend
        from spec_sdk.tree_drawing import tree_svg, tree_text

        registry = Registry.discover()
        backend = joined_backend(app, registry)
        asked = prompts_to_answer(app)[:1]
        pipeline = build_pipeline(app, registry, backend)
        prompts = model_inputs(pipeline, asked, app)
        check_length(len(prompts[0].tokens), app.max_new_tokens, pipeline.context, 0, 1)
        if not pipeline.ranks.is_leader:
            follow(pipeline, dataclasses.replace(pipeline))
            return 0
        recorder = record_verdicts(pipeline, prompts[0], app, self.config.cycles)
        app.output_dir.mkdir(parents=True, exist_ok=True)

        def spell(token: int) -> str:
            return pipeline.tokenizer.decode([token], skip_special_tokens=False)

        for cycle, (verdict, emitted) in enumerate(zip(recorder.verdicts, recorder.emitted, strict=True), start=1):
            nodes, depth, accepted = verdict.tree.size, verdict.tree.depth, len(verdict.path) - 1
            title = f"cycle {cycle}: {counted(nodes, 'node')}, depth {depth}, {accepted} accepted"
            if emitted < len(verdict.tokens):
                title += f"; the answer ends after {counted(emitted, 'new token')}"
            print(f"{title}\n{tree_text(verdict, spell, emitted)}\n")
            drawing = tree_svg(verdict, spell, title, emitted)
            write_atomically(app.output_dir / f"tree-{cycle}.svg", drawing)
        print(f"drawings in {app.output_dir}", file=sys.stderr)
        pipeline.ranks.finish()
        return 0


def record_verdicts(pipeline: Pipeline, prompt: ModelInput, app: Settings, cycles: int) -> VerdictRecorder:
    """The verdicts of the first ``cycles`` cycles on one prompt (fewer if it ends before)."""
    from spec_sdk.verdict_recorder import VerdictRecorder

    recorder = VerdictRecorder(pipeline.verifier)
    recorded = dataclasses.replace(pipeline, verifier=recorder)
    stream = recorded.stream(
        prompt.tokens, max_new_tokens=app.max_new_tokens, ignore_eos=app.ignore_eos, **prompt.options
    )
    with contextlib.closing(stream):  # type: ignore[type-var]
        for _ in stream:
            if len(recorder.verdicts) == cycles:
                break
    return recorder
