"""``task=advise``: which pipeline is fastest for a model, on this machine and these prompts, and why."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from spec_sdk.bench.records import VANILLA
from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.files import write_atomically, write_json
from spec_sdk.prompts import SPEC_BENCH_SAMPLE, Prompt, check_length, encode_prompt, read_prompt_file, read_prompts
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable
from spec_sdk.say import say
from spec_sdk.settings import Settings
from spec_sdk.standard_input import piped_text

if TYPE_CHECKING:
    from spec_sdk.advice.candidates import Candidate
    from spec_sdk.advice.choosing import Predicted
    from spec_sdk.advice.probing import Answers, Contestant
    from spec_sdk.bench.cost_curve import CostCurve
    from spec_sdk.pipeline import Pipeline

T = TypeVar("T")

RESULT = "advise.json"
PROBING, CHECKING = 0.55, 0.35
"""Shares of the time; the rest is for the cost curve and what loads."""
LEAST_ROUNDS = 2
"""Answers are shortened so that so many prompts are answered by all candidates."""
SHORTEST = 16
"""But not to less than so many tokens."""


@dataclass
class AdviseConfig:
    """Options of ``task=advise``."""

    candidates: Any = option(
        None,
        "pipelines to try, with options in quotes: [suffix, 'sd_chain drafter.width=4']",
        means={None: "those that need no training, those that find an installed draft, and pipeline if changed"},
    )
    seconds: float = option(60.0, "about how long to measure, once models are loaded", above=0, maximum=86400)
    checked: int = option(
        2, "how many of the best are measured to check what is predicted of them; the fastest is advised", minimum=1
    )


class Advise(Task):
    """Finds the fastest pipeline for a model on this machine: measures, predicts, explains, checks, writes its YAML."""

    name = "advise"
    Config = AdviseConfig
    config: AdviseConfig
    without = ("compare", "error_bounds")

    def run(self, app: Settings) -> int:
        """What was found goes to stdout, progress to stderr; returns 0.

        The run's directory gets ``pipeline/advised.yaml``, which ``--config-dir`` makes ``pipeline=advised``, and
        ``advise.json``. Raises UserError for bad input, before a model is loaded where it can be told.
        """
        from spec_sdk.advice import candidates as pipelines
        from spec_sdk.advice import choosing, telling
        from spec_sdk.advice.probing import take_turns

        named = pipelines.chosen(self.config.candidates, app)
        asked = spread(list(enumerate(prompts_of(app))))
        check_writable(app.output_dir)
        began = time.perf_counter()

        from spec_sdk.pipeline import build_pipeline

        registry = Registry.discover()
        plain_settings = pipelines.plain(app)
        vanilla = build_pipeline(plain_settings, registry)
        matcher = vanilla.constraints.of(app.constraint)
        prompts = []
        for i, prompt in asked:
            prompts.append(encode_prompt(vanilla.tokenizer, prompt, app.chat))
            check_length(len(prompts[-1]), app.max_new_tokens, vanilla.context, i, len(asked))
        say(f"{vanilla.target_name}, {vanilla.dtype}, {vanilla.backend.describe()}")
        curve, step_s = curve_of(vanilla)
        if named is None:
            explicit = app.model.draft != "auto" or app.model.draft_layers != "auto"
            named = pipelines.usual(app, explicit or vanilla.models.trained_model is not None)
        contestants, left_out = self._contestants(vanilla, named, curve, registry)
        deepest = {each.name: each.deepest for each in contestants}
        length = answer_length(app.max_new_tokens, self.config.seconds * PROBING, len(contestants), step_s)
        names = ", ".join(each.name for each in contestants[1:])
        say(f"probing {names}, {length} tokens a prompt")

        def losers(so_far: Answers) -> set[str]:
            return choosing.out_of_reach(choosing.predict_each(so_far, VANILLA, deepest, curve))

        probed = take_turns(
            contestants, prompts, length, self.config.seconds * PROBING, app.ignore_eos, matcher, losers, tell=say
        )
        left_out |= probed.failed
        found = choosing.predict_each(probed, VANILLA, deepest, curve)
        if not found:
            raise UserError("task.candidates: none of them could answer; " + "; ".join(left_out.values()))
        settings = {each.name: self._run_of(each, named) for each in found}
        finalists = {each.name: each for each in found[: self.config.checked]}
        say(f"checking {', '.join(finalists)}")
        checked = take_turns(
            [contestants[0], *self._finalists(vanilla, finalists, settings, registry)],
            [prompts[i] for i in probed.cycles[VANILLA]],
            length,
            self.config.seconds * CHECKING,
            app.ignore_eos,
            matcher,
            tell=say,
        )
        verified = choosing.measured(checked, VANILLA, finalists, curve)
        best = choosing.choice(verified, found)
        advised = plain_settings if best is None else settings[best]
        directory = app.output_dir
        report = telling.Report(
            vanilla,
            curve,
            length,
            probed,
            found,
            left_out,
            verified,
            best,
            time.perf_counter() - began,
            len(prompts),
        )
        summary = telling.summary_of(report)
        (directory / "pipeline").mkdir(parents=True, exist_ok=True)
        yaml_text = pipelines.advised_yaml(advised, summary, registry)
        write_atomically(directory / "pipeline" / f"{pipelines.ADVISED}.yaml", yaml_text)
        command = pipelines.command_of(app, os.fspath(directory))
        write_json(directory / RESULT, telling.as_json(report, command))
        telling.show(report, command)
        say(f"results in {directory}")
        return 0

    def _contestants(
        self, vanilla: Pipeline, named: Sequence[Candidate], curve: CostCurve, registry: Registry
    ) -> tuple[list[Contestant], dict[str, str]]:
        """Plain decoding and all candidates that can be built; of the others, why not. Raises UserError for one that
        was asked for.
        """
        from spec_sdk.advice.probing import Contestant, probed
        from spec_sdk.pipeline import build_pipeline

        found, left_out = [Contestant(VANILLA, vanilla)], dict[str, str]()
        for candidate in named:
            try:
                pipeline = build_pipeline(candidate.settings, registry, beside=vanilla)
            except UserError as error:
                if candidate.asked:
                    raise UserError(f"task.candidates: {candidate.name}: {error}") from error
                left_out[candidate.name] = str(error)
                continue
            found.append(probed(candidate.name, pipeline, curve))
        return found, left_out

    def _run_of(self, each: Predicted, named: Sequence[Candidate]) -> Settings:
        """The settings of a candidate's best way."""
        from spec_sdk.advice.candidates import with_adaptive, with_shape

        settings = next(candidate.settings for candidate in named if candidate.name == each.name)
        if each.adaptive:
            return with_adaptive(settings)
        return settings if each.shape is None else with_shape(settings, each.shape)

    def _finalists(
        self,
        vanilla: Pipeline,
        finalists: Mapping[str, Predicted],
        settings: Mapping[str, Settings],
        registry: Registry,
    ) -> list[Contestant]:
        from spec_sdk.advice.probing import Contestant
        from spec_sdk.pipeline import build_pipeline

        return [Contestant(name, build_pipeline(settings[name], registry, beside=vanilla)) for name in finalists]


def prompts_of(app: Settings) -> list[Prompt]:
    """The run's prompts; where none are given, those that come with spec-sdk."""
    if app.audio is not None:
        raise UserError("audio: task=advise answers texts; give prompts by prompt_file")
    if app.prompt is None and app.prompt_file is None and piped_text() is None:
        return read_prompt_file(SPEC_BENCH_SAMPLE)[: app.prompt_limit]
    return read_prompts(replace(app, compare=False))


def spread(prompts: Sequence[T]) -> list[T]:
    """In an order of which any beginning is spread over the whole: files are sorted by task, and time may be short."""
    bits = max(1, (len(prompts) - 1).bit_length())
    return [prompts[i] for i in sorted(range(len(prompts)), key=lambda i: f"{i:0{bits}b}"[::-1])]


def curve_of(vanilla: Pipeline) -> tuple[CostCurve, float]:
    """What passes of the target cost, measured now; and the seconds of a plain step. Raises UserError."""
    costs = vanilla.costs_of(vanilla.engine.drafter)
    if costs.unavailable is not None:
        raise UserError(f"task=advise: {costs.unavailable}")
    found = costs.measure()
    if found is None:
        raise UserError("task=advise: a pass takes seconds on this machine, too long for a curve of them")
    return found.target, costs.seconds_of_plain_pass()


def answer_length(most: int, seconds: float, contestants: int, step_s: float) -> int:
    """Tokens of each answer, so that some prompts are answered by all within ``seconds``."""
    return max(min(most, SHORTEST), min(most, int(seconds / (LEAST_ROUNDS * contestants * step_s))))
