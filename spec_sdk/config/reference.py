"""docs/configuration.md: every option of every kind, from the declarations."""

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
from spec_sdk.settings import ModelSettings, RunSettings

INTRODUCTION = """\
# Configuration reference

Every option of spec-sdk and of its plugins: name, default, valid values, meaning. The page is written from the
declarations in the code by `python -m spec_sdk.config.write`; change those, not this page.

Options stand on the command line as `name=value`, and in YAML under the same names. A pipeline
(`conf/pipeline/NAME.yaml`) may set any of them; the command line has the last word:

```
python -m spec_sdk pipeline=sd_chain drafter.width=2 sampling.temperature=0.8 prompt='Why is the sky blue?'
python -m spec_sdk task=plugins
```

A value that is unknown, of the wrong type or out of range is refused in one line before anything runs. The second
command lists the same for all plugins that are installed, other packages' included.
"""
HEAD = ("option", "default", "valid", "meaning")


def reference(registry: Registry, package: str, conf: Path) -> str:
    """The whole page: the options of a run, the pipelines in ``conf``, and the plugins of ``package``."""
    parts = [
        INTRODUCTION,
        _section("Run", _table(HEAD, _rows("", RunSettings))),
        _section("Models: `model.*`", _table(HEAD, _rows("model.", ModelSettings))),
        _section("Sampling: `sampling.*`", _table(HEAD, _rows("sampling.", SamplingParams))),
        _section("Pipelines: `pipeline=`", _table(("name", "what it is"), _pipelines(conf))),
    ]
    where = _places(registry)
    for kind in PLUGIN_KINDS:
        offers = [offer for offer in registry.offers(kind) if offer.package == package]
        plugins = [_plugin(where.get(kind, kind), offer) for offer in offers]
        parts.append(_section(f"`{where.get(kind, kind)}=`", "\n".join(plugins)))
    return "\n".join(parts)


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
    return f"### `{place}={plugin.name}`\n\n{' '.join(about)}\n{table}"


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
