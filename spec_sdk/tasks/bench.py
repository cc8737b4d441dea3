"""``task=bench``: pipelines beside plain decoding on the same prompts: speed, acceptance, losslessness."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec_sdk.bench.peers.entrants import PEERS, checked_peers
from spec_sdk.bench.pipeline_names import PIPELINES, pipeline_names
from spec_sdk.compiled_constraints import NOTHING
from spec_sdk.contracts import Task, option
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.run_output import check_writable
from spec_sdk.settings import Settings

if TYPE_CHECKING:
    from spec_sdk.bench.bench_directory import BenchDirectory
    from spec_sdk.bench.candidate import Entrant
    from spec_sdk.bench.chosen import Chosen
    from spec_sdk.bench.conversations import PromptSet
    from spec_sdk.bench.interleaved import Plan
    from spec_sdk.pipeline import Pipeline


@dataclass
class BenchConfig:
    """Options of ``task=bench``."""

    pipelines: Any = option(
        None,
        "what is compared with plain decoding: a list of pipelines, each with options of its own after the name, as in "
        '[prompt_lookup, "sd_chain drafter.width=4"]',
        means={None: "the run's own pipeline"},
    )
    temperatures: Any = option(
        None,
        "a list, such as [0, 1]; all prompts are answered at each",
        minimum=0,
        below=math.inf,
        means={None: "sampling.temperature"},
    )
    batch_sizes: list[int] = option(
        [1], "prompts that are answered at once; above 1 the first turn of a conversation alone is asked", minimum=1
    )
    rounds: int = option(1, "how often every prompt is answered", minimum=1)
    peers: Any = option(
        None,
        f"other programs beside, one or a list: {', '.join(PEERS)}",
        means={None: "none"},
    )
    transformers_python: str | None = option(
        None, "the Python interpreter that has transformers", means={None: "this one"}
    )
    llama_python: str | None = option(
        None, "the Python interpreter that has llama-cpp-python", means={None: "this one"}
    )
    assistant: str = option(
        "auto",
        "the assistant model of transformers_assistant: a directory or a Hugging Face hub id",
        means={"auto": "the draft model that model.draft and model.draft_layers mean"},
    )

    def __post_init__(self) -> None:
        for name in ("temperatures", "batch_sizes"):
            given = getattr(self, name)
            values = given if isinstance(given, list) else [given]
            if not values or len(set(values)) < len(values):
                raise UserError(f"task.{name}: {given} must be different numbers, one at least")
        if self.pipelines is not None:
            pipeline_names(self.pipelines, PIPELINES)
        checked_peers(self.peers, "task.peers")


class Bench(Task):
    """Compares pipelines with plain decoding on conversations such as Spec-Bench's, each prompt answered by all."""

    name = "bench"
    Config = BenchConfig
    config: BenchConfig

    def run(self, app: Settings) -> int:
        """Tables go to stdout, progress to stderr, records, figures and the config into the run's directory.

        Returns 1 if a pipeline that says it is lossless is not, could not be started, or failed at a prompt that fits
        the context; else 0. Raises UserError for bad input, before a model is loaded.
        """
        from spec_sdk.bench.bench_directory import BenchDirectory
        from spec_sdk.bench.chosen import chosen_of_run, chosen_vanilla, shared_overrides
        from spec_sdk.bench.conversations import read_conversations

        check_texts_only(app)
        prompts = read_conversations(app.prompt_file, app.prompt, app.prompt_limit)
        shared = shared_overrides(app.overrides)
        vanilla = chosen_vanilla(shared)
        chosen = chosen_of_run(app, self.config.pipelines, vanilla, shared)
        check_writable(app.output_dir)
        peers = checked_peers(self.config.peers, "task.peers")
        if peers and app.constraint != NOTHING:
            raise UserError(f"constraint: {', '.join(peers)} cannot be held to it; leave out constraint or task.peers")
        kinds = {vanilla.name: "pipeline", **{each.name: "pipeline" for each in chosen}}
        for name in peers:
            if name in kinds:
                raise UserError(f"task.peers: {name} is a pipeline of {PIPELINES} too; give that another name")
            kinds[name] = "peer"
        asked = self._asked(app, vanilla, prompts, kinds)
        with BenchDirectory(app.output_dir, asked, app.kept) as directory:
            if not directory.complete:
                self._answer(app, vanilla, chosen, prompts, directory)
            return directory.close(sys.stdout)

    def _answer(
        self, app: Settings, vanilla: Chosen, chosen: Sequence[Chosen], prompts: PromptSet, directory: BenchDirectory
    ) -> None:
        from spec_sdk.bench.asking import load_target, plan_of
        from spec_sdk.bench.chosen import entrant_of
        from spec_sdk.bench.greedy_checks import GreedyChecks
        from spec_sdk.bench.interleaved import InterleavedRun
        from spec_sdk.bench.progress_lines import ProgressLines
        from spec_sdk.bench.starting import started

        config, registry = self.config, Registry.discover()
        turns = sum(conversation.length for conversation in prompts.conversations)
        progress = ProgressLines(config.rounds)
        progress.say(f"loading {vanilla.settings.model.target}")
        answers = turns * config.rounds * len(self._temperatures(app))
        asked = [each.settings for each in chosen]
        base = load_target(app, vanilla.settings, registry, answers, directory, asked)
        plan = plan_of(app, base, prompts, config.rounds, self._temperatures(app), config.batch_sizes)
        entrants: list[Entrant] = [entrant_of(each, base, registry) for each in (vanilla, *chosen)]
        entrants += self._peers(vanilla.settings, base, plan)
        with started(entrants, directory.append, progress.say) as candidates:
            checks = GreedyChecks(plan, base.models.target.executor, directory.found, ties=not app.deterministic)
            try:
                InterleavedRun(plan, candidates, directory.append, progress, checks, directory.found).run()
            finally:
                progress.close()

    def _peers(self, settings: Settings, base: Pipeline, plan: Plan) -> list[Entrant]:
        from spec_sdk.bench.peers.entrants import PeerModels, peers_of
        from spec_sdk.bench.peers.longest_text import longest_text
        from spec_sdk.model.chosen_weights import kept_in_bits

        config, model, models = self.config, settings.model, base.models

        def kept(bits: int) -> bool:
            return (
                kept_in_bits(model.weights, "q", bits, lambda b: models.ops.fast_in_bits(b, models.dtype)) is not None
            )

        given = PeerModels(
            target=model.target,
            dtype=model.dtype,
            device=str(base.backend.device),
            assistant=model.draft if config.assistant == "auto" else config.assistant,
            draft_layers=model.draft_layers,
            context=longest_text(plan),
            kept_in_bits=kept,
        )
        names = checked_peers(config.peers, "task.peers")
        return peers_of(names, given, config.transformers_python, config.llama_python)

    def _temperatures(self, app: Settings) -> list[float]:
        given = self.config.temperatures
        if given is None:
            return [app.sampling.temperature]
        return [float(each) for each in (given if isinstance(given, list) else [given])]

    def _asked(self, app: Settings, vanilla: Chosen, prompts: PromptSet, kinds: dict[str, str]) -> dict[str, Any]:
        from spec_sdk.bench.asking import what_is_asked

        config = self.config
        temperatures, sizes = self._temperatures(app), config.batch_sizes
        asked = what_is_asked(app, vanilla.settings, prompts, kinds, config.rounds, temperatures, sizes)
        return asked | self._asked_of_peers()

    def _asked_of_peers(self) -> dict[str, Any]:
        config = self.config
        if not checked_peers(config.peers, "task.peers"):
            return {}
        pythons = {"transformers_python": config.transformers_python, "llama_python": config.llama_python}
        return {"peers": {**pythons, "assistant": config.assistant}}


def check_texts_only(app: Settings) -> None:
    """Raise UserError for options of other tasks that would go unheard."""
    if app.audio is not None:
        raise UserError("audio: task=bench asks texts; leave it out")
    if app.compare:
        raise UserError("compare: task=bench always compares with plain decoding; leave it out")
    if app.error_bounds:
        raise UserError("error_bounds: task=bench does not estimate them; leave it out")
