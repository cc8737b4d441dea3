"""docs/configuration.md and a page per kind of plugin below docs/configuration/, from the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from spec_sdk.config.option import as_yaml
from spec_sdk.contracts import PLUGIN_KINDS
from spec_sdk.options import describe_options
from spec_sdk.registry import Offer, Registry, summary_of
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import ModelSettings, RunSettings, SweepSettings

INTRODUCTION = """\
# Configuration reference

Every option of spec-sdk and of its plugins: name, default, valid values, meaning. The options of a run, its models and
its sampling are on this page; plugins have a page per kind:

{pages}
Options stand on the command line as `name=value`, and in YAML under the same names. A pipeline
(`conf/pipeline/NAME.yaml`) may set any of them; the command line has the last word:

```
python -m spec_sdk pipeline=sd_chain drafter.width=2 sampling.temperature=0.8 prompt='Why is the sky blue?'
python -m spec_sdk task=plugins
```

A value that is unknown, of the wrong type or out of range is refused in one line before anything runs. The second
command lists the same for all plugins that are installed, other packages' included.

A pipeline of your own is a file such as `yaml/pipeline/mine.yaml`. It chooses plugins under `defaults`, and sets
options under their names; the first line has Hydra take them for the run's own:

```yaml
# @package _global_
defaults:
  - override /drafter: draft_model
  - override /policy: adaptive
pipeline:
  name: mine
  summary: a tree of the draft model, where that pays
drafter:
  width: 3
```

```
python -m spec_sdk --config-dir yaml pipeline=mine prompt='Why is the sky blue?'
```

These pages are written from the declarations in the code by `python -m spec_sdk.config.write`; change those instead.
"""
HEAD = ("option", "default", "valid", "meaning")


def reference(registry: Registry, package: str, conf: Path) -> dict[str, str]:
    """The pages by their names below docs/: a run's options and the pipelines in ``conf``; plugins of ``package``."""
    where = _places(registry)
    places = {kind: where.get(kind, kind) for kind in PLUGIN_KINDS}
    listed = "".join(f"- [`{place}=`](configuration/{kind}.md)\n" for kind, place in places.items())
    parts = [
        INTRODUCTION.format(pages=listed),
        _section("Run", _table(HEAD, _rows("", RunSettings))),
        _section("Models: `model.*`", _table(HEAD, _rows("model.", ModelSettings))),
        _section("Sampling: `sampling.*`", _table(HEAD, _rows("sampling.", SamplingParams))),
        _section("Sweeps: `sweep.*`", _table(HEAD, _rows("sweep.", SweepSettings))),
        _section("Pipelines: `pipeline=`", _table(("name", "what it is"), _pipelines(conf))),
    ]
    pages = {"configuration.md": "\n".join(parts)}
    for kind, place in places.items():
        offers = [offer for offer in registry.offers(kind) if offer.package == package]
        plugins = [f"# Options of `{place}=`\n", *(_plugin(place, offer) for offer in offers)]
        pages[f"configuration/{kind}.md"] = "\n".join(plugins)
    return pages


def _places(registry: Registry) -> dict[str, str]:
    """Where plugins are chosen whose kind is no top-level key: ``drafter.growth``."""
    return {
        part_kind: f"{kind}.{option}"
        for kind in PLUGIN_KINDS
        for offer in registry.offers(kind)
        for option, part_kind in offer.plugin.parts.items()
    }


def _plugin(place: str, offer: Offer) -> str:
    plugin = offer.plugin
    about = [summary_of(plugin)]
    guarantee = getattr(plugin, "guarantee", None)
    if guarantee is not None:
        about.append(f"Guarantee: {guarantee}.")
    if plugin.aliases:
        about.append(f"Also called {', '.join(plugin.aliases)}.")
    if plugin.parts:
        about.append(f"Options of the chosen {' and '.join(plugin.parts.values())} stand beside its own.")
    rows = _rows(f"{place.partition('.')[0]}.", plugin.Config)
    table = f"\n{_table(HEAD, rows)}" if rows else ""
    return f"## `{place}={plugin.name}`\n\n{' '.join(about)}\n{table}"


def _rows(prefix: str, config_class: type) -> list[Sequence[str]]:
    return [_row(prefix, option) for option in describe_options(config_class)]


def _row(prefix: str, option: Mapping[str, Any]) -> Sequence[str]:
    return f"`{prefix}{option['name']}`", f"`{as_yaml(option['default'])}`", option["valid"], option["doc"]


def _pipelines(conf: Path) -> list[Sequence[str]]:
    loaded = [OmegaConf.load(path) for path in sorted((conf / "pipeline").glob("*.yaml"))]
    return [(f"`{pipeline.pipeline.name}`", pipeline.pipeline.summary) for pipeline in loaded]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
