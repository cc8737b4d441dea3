"""The pipelines that a benchmark compares: named in a list, checked before any model is loaded, put together later."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override

from spec_sdk.api.loading import check_shared
from spec_sdk.bench.candidate import Candidate, Entrant
from spec_sdk.bench.pipeline_candidate import PipelineCandidate
from spec_sdk.bench.pipeline_names import PIPELINES, pipeline_names
from spec_sdk.bench.records import VANILLA
from spec_sdk.config.composing import settings_for
from spec_sdk.config.overrides import SEARCH_PATH, parse
from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.pipeline import Pipeline, build_pipeline, check_options_of_attention
from spec_sdk.registry import Registry
from spec_sdk.settings import PIPELINE_NODES, PLUGIN_NODES, Settings
from spec_sdk.what_ran import plugins_of

OF_CANDIDATES = ("model.draft", "model.draft_layers")
"""Options of the model that candidates may differ in."""
OF_ALL = ("model", "backend", "constraint", "forced_tokens", "deterministic")
"""What holds for all candidates."""


@dataclass(frozen=True)
class Chosen:
    """A pipeline and its options, checked. ``name``: as it stands in the list."""

    name: str
    settings: Settings
    overrides: tuple[str, ...]


def shared_overrides(overrides: Sequence[str]) -> list[str]:
    """Those of a run's overrides that hold for all candidates, and those that say where YAML lies."""
    return [
        str(override.input_line)
        for override in parse(overrides)
        if _group(override) in OF_ALL or override.key_or_group == SEARCH_PATH
    ]


def own_overrides(overrides: Sequence[str]) -> list[str]:
    """Those of a run's overrides that choose its pipeline's plugins, and their options."""
    return [str(o.input_line) for o in parse(overrides) if _group(o) in PIPELINE_NODES]


def check_not_beside(overrides: Sequence[str], option: str) -> None:
    """Raise UserError if a pipeline or options of it stand beside ``option``, which lists pipelines."""
    for override in parse(overrides):
        if _group(override) in (*PIPELINE_NODES, "pipeline"):
            key = override.key_or_group
            raise UserError(
                f"{key}: {option} says what is compared; write it there, "
                f"as in {option}='[\"sd_chain drafter.width=4\"]'"
            )


def chosen_vanilla(shared: Sequence[str]) -> Chosen:
    """Plain decoding with these overrides. Raises UserError."""
    return Chosen(VANILLA, _checked([f"pipeline={VANILLA}", *shared]), ())


def chosen_pipelines(texts: Sequence[str], vanilla: Chosen, shared: Sequence[str], option: str) -> list[Chosen]:
    """``texts``: a pipeline's name each, and options after it. Plain decoding among them is passed over.

    Raises UserError, beginning with ``option``, for what no run could be made of.
    """
    found: dict[str, Chosen] = {}
    for text in texts:
        try:
            chosen = _chosen(text, vanilla, shared)
        except UserError as error:
            raise UserError(f"{option}: {error}") from error
        if chosen.name in found:
            raise UserError(f"{option}: '{chosen.name}' stands there twice")
        if chosen.name != VANILLA:
            found[chosen.name] = chosen
    return list(found.values())


def chosen_of_run(app: Settings, given: Any, vanilla: Chosen, shared: Sequence[str]) -> list[Chosen]:
    """What ``task.pipelines`` lists (``given``), or if that is None the run's own pipeline; but for plain decoding.

    Raises UserError.
    """
    if given is None:
        own = " ".join([app.pipeline.name, *own_overrides(app.overrides)])
        return chosen_pipelines([own], vanilla, shared, "pipeline")
    check_not_beside(app.overrides, PIPELINES)
    return chosen_pipelines(pipeline_names(given, PIPELINES), vanilla, shared, PIPELINES)


def entrant_of(chosen: Chosen, base: Pipeline, registry: Registry) -> Entrant:
    """The candidate, to be put together on the models that ``base`` has loaded."""

    def make(slots: int) -> Pipeline:
        return build_pipeline(chosen.settings, registry, slots=slots, beside=base)

    def open_it() -> Candidate:
        settings = chosen.settings
        speculates = settings.speculates_on_attention
        threshold: Any = settings.attention_verifier.get("threshold") if speculates else None
        plugins = plugins_of(settings, registry)
        return PipelineCandidate(chosen.name, make, chosen.overrides, plugins, threshold, settings.constraint)

    return Entrant(chosen.name, open_it, "pipeline")


def _chosen(text: str, vanilla: Chosen, shared: Sequence[str]) -> Chosen:
    try:
        name, *options = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r} cannot be read: {error}") from error
    if "=" in name:
        raise UserError(f"{text!r} must begin with the name of a pipeline, as in 'sd_chain drafter.width=4'")
    for override in parse(options):
        key = str(override.key_or_group)
        if _group(override) not in PIPELINE_NODES and key not in OF_CANDIDATES:
            hint = "" if _group(override) in PLUGIN_NODES else did_you_mean(key, OF_CANDIDATES)
            raise UserError(
                f"'{text}': {key} is of the whole run; candidates differ in {', '.join(PIPELINE_NODES)} and "
                f"{' and '.join(OF_CANDIDATES)}{hint if 'did you mean' in hint else ''}"
            )
    given = {str(override.key_or_group) for override in parse(options)}
    kept = [text for text, o in zip(shared, parse(shared), strict=True) if str(o.key_or_group) not in given]
    settings = _checked([f"pipeline={name}", *kept, *options])
    check_shared(settings, vanilla.settings)
    return Chosen(" ".join([name, *options]), settings, tuple(options))


def _checked(overrides: Sequence[str]) -> Settings:
    """Settings whose plugins have the options that they are given. Raises UserError."""
    settings, registry = settings_for(overrides), Registry.discover()
    check_options_of_attention(settings)
    for kind in (*PIPELINE_NODES, "constraint", "backend"):
        node = getattr(settings, kind)
        # that is the absence of a plugin
        if kind != "predictor" or node.get("name") != "none":
            registry.configure(kind, node)
    return settings


def _group(override: Override) -> str:
    return str(override.key_or_group).partition(".")[0]
