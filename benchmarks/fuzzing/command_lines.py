"""Command lines: options with values that fit, nearly fit or mean nothing, groups, flags and bad syntax."""

from __future__ import annotations

import dataclasses
import functools
from random import Random
from typing import Any

from benchmarks.fuzzing.material import HEADS, Material
from benchmarks.fuzzing.trial import Place
from benchmarks.fuzzing.values import TEXTS
from spec_sdk.config.composing import groups, options_of
from spec_sdk.config.option import as_yaml, declared_of
from spec_sdk.contracts import PLUGIN_KINDS
from spec_sdk.registry import Registry
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import PLUGIN_NODES, ModelSettings, RunSettings

FLAGS = (
    *(["--multirun"], ["-m"], ["--cfg", "job"], ["--cfg", "hydra"], ["--cfg", "all"], ["--cfg"], ["--cfg", "x"]),
    *(["--help"], ["--hydra-help"], ["--version"], ["--resolve"], ["--info"], ["--info", "all"], ["--info", "x"]),
    *(["--package", "drafter"], ["--package", "x.y"], ["-p", ""], ["--shell-completion"], ["-sc", "query=bash"]),
    *(["-sc", "install=x"], ["-sc", "query=bash", "prompt=a"], ["--run"], ["--config-dir", "."], ["--config-dir", ""]),
    *(["--config-name", "x"], ["--config-path", "/"], ["--experimental-rerun", "x"], ["--nothing"], ["-x"], ["--"]),
)
HYDRA = (
    *(
        "hydra.run.dir",
        "hydra.sweep.dir",
        "hydra.sweep.subdir",
        "hydra.output_subdir",
        "hydra.job.name",
        "hydra.verbose",
    ),
    *("hydra.job.chdir", "hydra.searchpath", "hydra.mode", "hydra.callbacks", "hydra.sweeper.params", "hydra.nothing"),
    *("hydra/launcher", "hydra/sweeper", "hydra/job_logging", "hydra/hydra_logging", "hydra/help", "hydra"),
    *("hydra.job.env_set", "hydra.job_logging", "hydra.runtime.choices", "hydra.overrides.task", "hydra.job.config"),
)
SLOW = ("train_draft", "needle", "tune_layers", "cost_curve", "estimate")
"""Tasks whose options say how long they work: their numbers stay small."""
FEW = ("0", "1", "2", "-1", "", "null", "nan", "x", "[1]", "[]", "{}")


def command_line(rng: Random, material: Material, place: Place) -> list[str]:
    """The arguments of one."""
    arguments = list(_begin(rng, material))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        arguments += _overrides(rng, arguments)
    if rng.random() < 0.15:
        flag = rng.choice(FLAGS)
        at = rng.randrange(len(arguments) + 1)
        arguments[at:at] = flag
    if rng.random() < 0.05:
        rng.shuffle(arguments)
    return arguments


def _begin(rng: Random, material: Material) -> list[str]:
    """A command line that means something, on tiny models."""
    if rng.random() < 0.15:
        task = rng.choice([name for name in options_of("task") if name != "generate"])
        return [f"model.target={material.model('text')}", f"task={task}", "max_new_tokens=2", "output_dir=out"]
    begin = [f"model.target={material.model('text')}", "max_new_tokens=3", "output_dir=out"]
    begin.append(rng.choice(("prompt=a b c", "prompt=a b c", f"prompt_file={material.root / 'prompts.jsonl'}")))
    if rng.random() < 0.5:
        begin.insert(0, f"pipeline={rng.choice(options_of('pipeline'))}")
    if rng.random() < 0.1:
        drafter = rng.choice(list(HEADS))
        begin += [f"drafter={drafter}", f"drafter.checkpoint={material.head(rng.choice(HEADS[drafter][1]))}"]
        begin[-3] = begin[-3] if rng.random() < 0.2 else f"model.target={material.model('smollm')}"
    return begin


def _overrides(rng: Random, before: list[str]) -> list[str]:
    """One override, and before an option of a plugin mostly the plugin's choice."""
    kind, choices = rng.random(), []
    if kind < 0.6:
        chosen = [task for task in before if task.startswith("task=")] or ["task=generate"]
        options = [o for o in _options() if not o.key.startswith("task.") or chosen[0] in o.choices]
        option = rng.choice(options)
        few = option.key.startswith("task.") and chosen[0].removeprefix("task=") in SLOW
        key, value = option.key, rng.choice(option.near if rng.random() < 0.5 else FEW if few else TEXTS)
        if option.choices and not option.key.startswith("task.") and rng.random() < 0.8:
            choices = list(option.choices)
    elif kind < 0.8:
        key = rng.choice((*groups(), *PLUGIN_NODES))
        value = rng.choice(options_of(key) or [""]) if rng.random() < 0.6 else rng.choice(TEXTS)
    elif kind < 0.88:
        key, value = rng.choice(HYDRA), rng.choice(TEXTS)
    else:
        key, value = _misspelt(rng, rng.choice((*groups(), *[option.key for option in _options()]))), rng.choice(TEXTS)
    sign = rng.choice(("",) * 10 + ("+", "++", "~"))
    equals = "" if sign == "~" and rng.random() < 0.5 else rng.choice(("=",) * 30 + ("", "==", " = ", ":"))
    return [*choices, f"{sign}{key}{equals}{value}"]


def _misspelt(rng: Random, key: str) -> str:
    at = rng.randrange(len(key))
    return rng.choice(
        (
            key[:at] + key[at + 1 :],
            key[:at] + rng.choice("abz._/@[0 ü-\x00") + key[at:],
            f"{key}.x",
            f"{key}.{rng.choice(TEXTS)}",
            f"{key}[0]",
            f"{key}@x",
            f"{key}@drafter",
            key.rpartition(".")[2],
            f"/{key}",
            rng.choice(TEXTS),
            key.upper(),
            ".".join(key) if len(key) < 40 else key,
        )
    )


@dataclasses.dataclass(frozen=True)
class Option:
    """An option's path, values that are valid or just not, and what must be chosen for it to be one."""

    key: str
    near: list[str]
    choices: tuple[str, ...] = ()


@functools.cache
def _options() -> list[Option]:
    """Every option of a run and of every plugin."""
    groups_of: list[tuple[str, type, tuple[str, ...]]] = [
        ("", RunSettings, ()),
        ("model.", ModelSettings, ()),
        ("sampling.", SamplingParams, ()),
    ]
    registry = Registry.discover()
    for kind in PLUGIN_KINDS:
        for offer in registry.offers(kind):
            name = offer.plugin.name
            if kind in PLUGIN_NODES:
                groups_of.append((f"{kind}.", offer.plugin.Config, (f"{kind}={name}",)))
            else:
                # growth and runner are parts of drafters, whose options stand beside the drafter's own
                groups_of.append(("drafter.", offer.plugin.Config, ("drafter=draft_model", f"drafter.{kind}={name}")))
    return [
        Option(f"{prefix}{field.name}", sorted(_near(field)), choices)
        for prefix, config, choices in groups_of
        for field in dataclasses.fields(config)
    ]


def _near(field: dataclasses.Field[Any]) -> set[str]:
    declared = declared_of(field)
    default = field.default if field.default is not dataclasses.MISSING else None
    bounds = [b for b in (declared.minimum, declared.above, declared.maximum, declared.below) if b is not None]
    values = [default, *declared.choices, *declared.means, *bounds, *(bound + 1 for bound in bounds)]
    if isinstance(default, int | float) and not isinstance(default, bool):
        values += [default * 2, default + 1, float(default)]
    return {as_yaml(value) for value in values} - {"-"}
