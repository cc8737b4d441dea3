"""``task=accuracy``: samplers beside one another, by how near their answers come to references."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.prompts import SUMMARIES_SAMPLE
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.accuracy.accuracy_directory import AccuracyDirectory
    from spec_sdk.bench.chosen import Chosen
    from spec_sdk.bench.conversations import PromptSet


@dataclass
class AccuracyConfig:
    """Options of ``task=accuracy``."""

    samplers: list[str] = option(
        ["reference", "exact", "sigmoid"],
        "what is compared: samplers, each with options of its own after the name, as in "
        '["reference", "exact sampler.kernels=torch"]; the first is the baseline',
    )
    scales: list[float] = option(
        [],
        "s for alpha = -s and beta = s, of samplers that have these: as [10, 1e3, 1e4]; none: their own",
        above=0,
        below=math.inf,
    )
    depths: list[int] = option(
        [],
        "tokens drafted per cycle, such as [3, 5, 10, 15]: all samplers at each; none: as the policy says",
        minimum=1,
    )
    metrics: list[str] = option(
        ["rouge1", "rouge2", "rougeL"], "what answers are scored by: rouge1, rouge2, rougeL, rougeLsum, wer, wer_basic"
    )
    seeds: int = option(3, "how often every prompt is answered, with other random numbers each time", minimum=1)
    cue: str | None = option(
        None, "a line below every prompt, such as 'Summary:'", means={None: "none; prompts are as they are"}
    )

    def __post_init__(self) -> None:
        for name in ("samplers", "scales", "depths", "metrics"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise UserError(f"task.{name}: {given} must be different values")
        if not self.samplers or not all(text.strip() for text in self.samplers):
            raise UserError(
                "task.samplers: name one at least, as in [reference,exact,sigmoid]; task=plugins lists them"
            )
        if not self.metrics:
            raise UserError("task.metrics: name one at least, as in [rouge1]")


class CompareAccuracy(Task):
    """Compares samplers by the accuracy of sampled answers (ROUGE, word errors), and by their time in sampling."""

    name = "accuracy"
    Config = AccuracyConfig
    config: AccuracyConfig

    def run(self, app: Settings) -> int:
        """Tables go to stdout, progress to stderr; records, figures, tables and config into the run's directory.

        Returns 1 if a sampler could not be started, or failed at a prompt that fits the context; else 0. Raises
        UserError for bad input, before a model is loaded.
        """
        from spec_sdk.accuracy.accuracy_directory import AccuracyDirectory
        from spec_sdk.accuracy.choosing import chosen_samplers
        from spec_sdk.accuracy.metrics import metric
        from spec_sdk.bench.asking import what_is_asked
        from spec_sdk.bench.chosen import chosen_vanilla, own_overrides, shared_overrides
        from spec_sdk.bench.records import VANILLA

        config = self.config
        self._check(app)
        metrics = [metric(name) for name in config.metrics]
        scorers = {each.name: each.scorer() for each in metrics}
        prompts, references = self._prompts(app)
        shared = shared_overrides(app.overrides)
        vanilla = chosen_vanilla(shared)
        pipeline = [app.pipeline.name, *own_overrides(app.overrides)]
        chosen = chosen_samplers(config.samplers, config.scales, config.depths, pipeline, vanilla, shared)
        check_verifier(app, chosen[0][1])
        check_writable(app.output_dir)
        kinds = dict.fromkeys([*([VANILLA] if app.compare else []), *(c.candidate for c, _ in chosen)], "pipeline")
        asked = {
            "task": self.name,
            "pipeline": pipeline,
            "metrics": config.metrics,
            "cue": config.cue,
            **what_is_asked(app, vanilla.settings, prompts, kinds, config.seeds, [app.sampling.temperature], [1]),
            "references": {"sha256": hashlib.sha256(repr(references).encode()).hexdigest()},
            "samplers": [asdict(choice) for choice, _ in chosen],
        }
        with AccuracyDirectory(app.output_dir, asked, app.kept) as directory:
            if not directory.complete:
                candidates = [*([vanilla] if app.compare else []), *(each for _, each in chosen)]
                self._answer(app, vanilla, candidates, prompts, references, scorers, directory)
            return directory.close(sys.stdout)

    def _answer(
        self,
        app: Settings,
        vanilla: Chosen,
        chosen: Sequence[Chosen],
        prompts: PromptSet,
        references: Mapping[str, str],
        scorers: Mapping[str, Any],
        directory: AccuracyDirectory,
    ) -> None:
        from spec_sdk.accuracy.records import Scoring, reference_records
        from spec_sdk.bench.asking import load_target, plan_of
        from spec_sdk.bench.chosen import entrant_of
        from spec_sdk.bench.interleaved import InterleavedRun
        from spec_sdk.bench.progress_lines import ProgressLines
        from spec_sdk.bench.starting import started

        seeds, registry = self.config.seeds, Registry.discover()
        progress = ProgressLines(seeds)
        progress.say(f"loading {vanilla.settings.model.target}")
        asked, answers = [each.settings for each in chosen], len(prompts.conversations) * seeds
        base = load_target(app, vanilla.settings, registry, answers, directory, asked)
        if directory.found is None and app.save_prompts:
            directory.append(reference_records(references))
        plan = plan_of(app, base, prompts, seeds, [app.sampling.temperature], [1])
        write = Scoring(directory.append, base.tokenizer.decode, references, scorers)
        with started([entrant_of(each, base, registry) for each in chosen], directory.append, progress.say) as ready:
            try:
                InterleavedRun(plan, ready, write, progress, found=directory.found).run()
            finally:
                progress.close()

    def _prompts(self, app: Settings) -> tuple[PromptSet, dict[str, str]]:
        """What is asked, the cue below it, and every prompt's reference. Raises UserError."""
        from spec_sdk.bench.conversations import read_conversations
        from spec_sdk.prompt_lines import check_unicode

        file = app.prompt_file or SUMMARIES_SAMPLE
        found = read_conversations(file, count=app.prompt_limit)
        references, asked = dict[str, str](), []
        for each in found.conversations:
            where = f"prompt_file: {file}: prompt {each.id!r}"
            if each.reference is None:
                raise UserError(f"{where} has no text 'reference' to hold its answer against")
            if len(each.turns) > 1:
                raise UserError(f"{where} has {len(each.turns)} turns, and a reference is of one answer")
            check_unicode(each.reference, where)
            references[each.id] = each.reference
            if self.config.cue is not None:
                if not each.turns:
                    raise UserError(f"task.cue: {where} has messages; a cue stands below a 'prompt'")
                each = replace(each, turns=(f"{each.turns[0]}\n{self.config.cue}",))
            asked.append(each)
        return replace(found, conversations=tuple(asked)), references

    def _check(self, app: Settings) -> None:
        """Raise UserError for options that would go unheard, or make all samplers alike."""
        from spec_sdk.config.overrides import parse

        for name in ("audio", "prompt"):
            if getattr(app, name) is not None:
                raise UserError(f"{name}: task=accuracy asks the prompts of a file with references; use prompt_file")
        if app.error_bounds:
            raise UserError("error_bounds: task=accuracy does not estimate them; leave it out")
        if app.sampling.temperature == 0:
            raise UserError(
                "sampling.temperature: at 0 answers are greedy, whatever the sampler; use sampling.temperature=1"
            )
        for override in parse(app.overrides):
            group = str(override.key_or_group).partition(".")[0]
            if group == "sampler":
                raise UserError(
                    f"{override.key_or_group}: task.samplers says what is compared; write it there, as in "
                    "task.samplers='[reference, \"exact sampler.kernels=torch\"]'"
                )
            if group == "policy" and self.config.depths:
                raise UserError(f"{override.key_or_group}: task.depths says how deep is drafted; leave one of them out")


def check_verifier(app: Settings, chosen: Chosen) -> None:
    """Raise UserError if the pipeline drafts nothing, or its verifier does not sample."""
    if chosen.settings.drafter.get("name") == "none":
        raise UserError("drafter: 'none' drafts nothing, and samplers are told apart by drafts; use pipeline=sd_chain")
    make: Any
    make, config = Registry.discover().configure("verifier", chosen.settings.verifier)
    make(config).check(app.sampling)
