"""Which pipelines are tried, and the settings and YAML of each."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from spec_sdk.advice.cycles import Shape
from spec_sdk.bench.chosen import (
    OF_ALL,
    Chosen,
    check_not_beside,
    chosen_pipelines,
    chosen_vanilla,
    own_overrides,
    shared_overrides,
)
from spec_sdk.config.overrides import parse
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry
from spec_sdk.settings import PIPELINE_NODES, ModelSettings, Settings
from spec_sdk.what_ran import plugins_of

WITHOUT_MODEL = ("prompt_lookup", "suffix", "token_recycling", "mixed")
WITH_MODEL = ("sd_chain drafter.width=4", "easyspec_tree")
"""With a draft model, if one is named or installed. A tree tells of chains too."""
WITH_TARGET = ("layer_skip_tree",)
WITH_HEAD = ("eagle_tree", "mtp_chain")
"""Those that find a head of an installed package, or in the target's own checkpoint."""
ADVISED = "advised"
CANDIDATES = "task.candidates"
OF_DRAFT = ("draft", "draft_layers")
"""Options of the model that are part of what is advised."""
OF_RUN = (*OF_ALL, "sampling", "max_new_tokens", "ignore_eos", "chat")
"""Options of the run that are none of the pipeline."""
WRITTEN = ("drafter", "verifier", "sampler", "policy")
"""Kinds of plugin that the YAML names in any case; the attention level's only where there is one."""


@dataclass(frozen=True)
class Candidate:
    """A pipeline that may be tried. ``asked``: it was named, so that one that cannot be built is an error."""

    name: str
    settings: Settings
    asked: bool


def plain(app: Settings) -> Settings:
    """Plain decoding with the run's models, backend and sampling. Raises UserError."""
    return _of_run(chosen_vanilla(shared_overrides(app.overrides)), app).settings


def chosen(candidates: Any, app: Settings) -> list[Candidate] | None:
    """Those that are named; None where the choice is ours. Raises UserError."""
    if candidates is None:
        return None
    check_not_beside(app.overrides, CANDIDATES)
    names = candidates if isinstance(candidates, list) else [candidates]
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"{CANDIDATES}: {candidates!r} must be a list of pipelines; task=plugins lists them")
    found = _named(names, app, CANDIDATES)
    if not found:
        raise UserError(f"{CANDIDATES}: plain decoding is measured in any case; name others, such as [suffix, mixed]")
    return found


def usual(app: Settings, draft_model: bool) -> list[Candidate]:
    """What is tried if nothing is named: the run's own pipeline, if one was chosen, and those that need no training.

    ``draft_model``: whether there is one. Raises UserError.
    """
    names = [*WITHOUT_MODEL, *(WITH_MODEL if draft_model else ()), *WITH_TARGET, *WITH_HEAD]
    own = []
    if any(str(o.key_or_group).partition(".")[0] in ("pipeline", *PIPELINE_NODES) for o in parse(app.overrides)):
        own = _named([" ".join([app.pipeline.name, *own_overrides(app.overrides)])], app, "pipeline")
    known = {each.name for each in own}
    others = _named([name for name in names if name not in known], app, CANDIDATES)
    return [*own, *(replace(candidate, asked=False) for candidate in others)]


def with_shape(settings: Settings, shape: Shape) -> Settings:
    """A pipeline with the same tree in every cycle."""
    return replace(settings, policy={"name": "fixed", "depth": shape.depth, "max_nodes": shape.nodes})


def with_adaptive(settings: Settings) -> Settings:
    """A pipeline whose policy chooses the tree."""
    return replace(settings, policy={"name": "adaptive", "costs": "measure"})


def advised_yaml(settings: Settings, summary: str, registry: Registry) -> str:
    """The YAML of a pipeline ``advised``, for a directory's ``pipeline/advised.yaml``."""
    plugins = plugins_of(settings, registry)
    kinds = [*WRITTEN, *(kind for kind in plugins if kind in ("predictor", "attention_verifier"))]
    chosen_s = {kind: plugins[kind] for kind in kinds}
    nodes: dict[str, Any] = {
        "defaults": [{f"override /{kind}": plugin["name"]} for kind, plugin in chosen_s.items()],
        "pipeline": {"name": ADVISED, "summary": summary},
    }
    for kind, plugin in chosen_s.items():
        node: Mapping[str, Any] = getattr(settings, kind)
        options = {key: node[key] for key in plugin if key != "name"}
        if options:
            nodes[kind] = options
    drafts = {key: getattr(settings.model, key) for key in OF_DRAFT}
    if drafts != {key: getattr(ModelSettings(), key) for key in OF_DRAFT}:
        nodes["model"] = drafts
    text: str = yaml.safe_dump(nodes, sort_keys=False, allow_unicode=True, width=10**6)
    return f"# @package _global_\n{text}"


def command_of(app: Settings, directory: str) -> str:
    """The command line that answers with the advised pipeline, with the run's models, backend and sampling."""
    kept = [
        str(override.input_line)
        for override in parse(app.overrides)
        if str(override.key_or_group).partition(".")[0] in OF_RUN
        and str(override.key_or_group) not in [f"model.{key}" for key in OF_DRAFT]
    ]
    words = ["python", "-m", "spec_sdk", "--config-dir", directory, f"pipeline={ADVISED}", *kept]
    return " ".join(shlex.quote(word) for word in words)


def _named(texts: Sequence[str], app: Settings, option: str) -> list[Candidate]:
    shared = shared_overrides(app.overrides)
    return [_of_run(each, app) for each in chosen_pipelines(texts, chosen_vanilla(shared), shared, option)]


def _of_run(chosen: Chosen, app: Settings) -> Candidate:
    """With the run's sampling and prompts."""
    settings = replace(
        chosen.settings,
        sampling=app.sampling,
        max_new_tokens=app.max_new_tokens,
        ignore_eos=app.ignore_eos,
        chat=app.chat,
    )
    return Candidate(chosen.name, settings, asked=True)
