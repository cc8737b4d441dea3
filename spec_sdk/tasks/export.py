"""``task=export``: a trained draft in the layouts that vLLM, SGLang and others read."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from spec_sdk.bench.conversations import spread
from spec_sdk.contracts import Task, option
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.files import expanded
from spec_sdk.prompts import SPEC_BENCH_SAMPLE, read_prompt_file
from spec_sdk.registry import Registry
from spec_sdk.settings import DTYPES, Settings

WRITTEN = {
    "auto": "the first of these that holds the draft",
    "speculators": "of the speculators library: EAGLE-3, P-EAGLE, DFlash, DSpark; for vLLM",
    "safeailab": "EAGLE's own, as SpecForge writes it: EAGLE-1 to 3; for SGLang and vLLM",
    "zlab": "of z-lab and DeepSpec: DFlash, DSpark; for SGLang and vLLM",
    "medusa": "Medusa's own",
    "hf": "a directory of Hugging Face: draft models; for vLLM, SGLang and transformers",
}


@dataclass
class ExportConfig:
    """Options of ``task=export``."""

    output: str | None = option(None, "the directory to write; it must not be there yet")
    format: str = option("auto", "the layout", choices=WRITTEN)
    input: str | None = option(
        None,
        "the draft: a directory, or a Hugging Face hub id",
        means={None: "the one that the drafter has: drafter.checkpoint, or model.draft"},
    )
    target_name: str | None = option(
        None, "what the written files call the target, as the server will", means={None: "model.target"}
    )
    dtype: str = option(
        "auto",
        "of the written weights",
        choices={**dict.fromkeys(DTYPES, ""), "auto": "as stored; bfloat16 of those in few bits"},
    )
    depth: int | None = option(
        None,
        "tokens to draft at a time, for the files and commands",
        minimum=1,
        maximum=64,
        means={None: "recommended by measured acceptance"},
    )
    measure: int = option(
        0,
        "so many prompts to measure acceptance with, of prompt_file; 0: what training measured",
        minimum=0,
        maximum=10000,
    )


class Export(Task):
    """Writes a draft head or draft model as vLLM, SGLang or others read it, with the depth and commands to serve it."""

    name = "export"
    Config = ExportConfig
    config: ExportConfig

    def run(self, app: Settings) -> int:
        """The directory goes to stdout, what to do with it to stderr; returns 0.

        Raises UserError, and leaves nothing behind, for a draft that cannot be written in this format.
        """
        config = self.config
        if not config.output or not config.output.strip():
            raise UserError("task.output: is not given; name the directory to write, as in task.output=my-export")
        output = expanded(config.output, "task.output")
        if output.exists():
            raise UserError(f"task.output: {output} is there already; name a directory that is not")

        from spec_sdk.export.draft_source import draft_source
        from spec_sdk.export.exporting import Asked, export
        from spec_sdk.pipeline import TORCH_DTYPES

        source = draft_source(config.input, app.drafter, app.model.target, app.model.draft)
        asked = Asked(
            app.model.target,
            config.format,
            config.target_name,
            TORCH_DTYPES.get(config.dtype),
            config.depth,
            self._rates(app),
            config.measure,
        )
        written = export(source, asked, output)
        print(written.directory)
        for line in written.notes:
            print(line, file=sys.stderr)
        return 0

    def _rates(self, app: Settings) -> tuple[float, ...]:
        """Acceptance by place in a chain, measured with the run's pipeline; empty where that is not asked for."""
        if not self.config.measure:
            return ()
        if self.config.input is not None:
            raise UserError("task.measure: it measures the drafter's own draft; name it with drafter.checkpoint")

        from spec_sdk.export.measured_rates import DEEPEST, chain_settings, measured_rates
        from spec_sdk.pipeline import build_pipeline

        prompts = read_prompt_file(app.prompt_file or SPEC_BENCH_SAMPLE)
        chosen = spread(prompts, self.config.measure)
        settings = chain_settings(app, DEEPEST)
        pipeline = build_pipeline(settings, Registry.discover())
        print(f"measuring acceptance on {counted(len(chosen), 'prompt')}", file=sys.stderr)
        return measured_rates(pipeline, chosen, settings)
