"""The checks of an installed plugin of any kind, made with the options of a run."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from spec_sdk.contracts import Backend, Drafter
from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.options import merge_options
from spec_sdk.registry import Registry
from spec_sdk.settings import Settings
from spec_sdk.testing import constraints, drafters, policies, samplers
from spec_sdk.testing.attention_verifiers import attention_verifier_checks
from spec_sdk.testing.backends import backend_checks
from spec_sdk.testing.check import Check
from spec_sdk.testing.constraints import constraint_checks
from spec_sdk.testing.drafters import drafter_checks
from spec_sdk.testing.growths import growth_checks
from spec_sdk.testing.policies import policy_checks
from spec_sdk.testing.predictors import predictor_checks
from spec_sdk.testing.runners import runner_checks
from spec_sdk.testing.samplers import sampler_checks
from spec_sdk.testing.small_models import AnyText, small_models
from spec_sdk.testing.tasks import task_checks
from spec_sdk.testing.verifiers import verifier_checks

LAYERS = (4, 8, 16, 32, 64, 128, 256)
"""Of the target that an attention verifier is held to: as few as its options allow."""
DRAWS_OF_SMALL_MODELS, DRAWS_OF_REAL_MODELS = 250, 60
"""Of drafters: half a minute for those that ask a model for every tree."""
PROMPTS = ([5], [1, 3, 3, 2, 4, 1, 3], [0, 4, 1, 2, 4, 3, 0, 4, 1, 2] * 2)
"""In the six tokens of the small models."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The plugin to check. ``draws``: how often to draw, None for the kit's own counts. ``task_options``: of a task."""

    kind: str
    name: str
    settings: Settings
    registry: Registry
    draws: int | None = None
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def node(self, kind: str | None = None) -> Mapping[str, Any]:
        """The options of the run for a kind of plugin."""
        node: Mapping[str, Any] = getattr(self.settings, kind or self.kind)
        return node

    def made(self, *arguments: Any) -> Any:
        """The plugin with its options, made anew."""
        plugin: Any
        plugin, config = self.registry.configure(self.kind, self.node())
        return plugin(config, *arguments)

    def part(self) -> Any:
        """The part of the run's drafter that is to be checked, made anew."""
        plugin, config = self.registry.configure("drafter", self.node("drafter"))
        option = next(option for option, kind in plugin.parts.items() if kind == self.kind)
        return getattr(config, option)


def checks_of(subject: Subject) -> list[Check]:
    """What the kit looks at in a plugin of this kind. Raises UserError for options that it refuses."""
    _configured(subject)
    options = Check("options: the defaults are valid, and making it leaves them as they are", lambda: _options(subject))
    try:
        return [options, *MAKERS[subject.kind](subject)]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        return [options, Check("is made for a model", _failed(error))]


def _failed(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def _configured(subject: Subject) -> None:
    """Raise UserError for options of the run that the plugin refuses."""
    if subject.kind in subject.registry.get("drafter", str(subject.node("drafter")["name"])).parts.values():
        subject.part()
    elif subject.kind != "task":
        subject.registry.configure(subject.kind, subject.node())


def _options(subject: Subject) -> str:
    plugin: Any = subject.registry.get(subject.kind, subject.name)
    try:
        first = merge_options(plugin.Config, {}, subject.kind, f"{subject.kind} '{subject.name}'")
    except UserError as error:
        raise AssertionError(f"its defaults are refused: {error}") from error
    names = [field.name for field in dataclasses.fields(plugin.Config)]
    before = copy.deepcopy(first)
    if subject.kind in ("verifier", "attention_verifier", "policy", "growth", "runner", "predictor"):
        try:
            plugin(first)
        except UserError as error:
            return f"{counted(len(names), 'option')}; the defaults alone are refused: {error}"
    assert repr(first) == repr(before), f"making it changed its options from {before} to {first}"
    return counted(len(names), "option")


def _drafter(subject: Subject) -> list[Check]:
    """On small random models where the drafter can draft with them, else on those of the run."""
    backend: Any
    backend, config = subject.registry.configure("backend", subject.node("backend"))
    loading: Backend = backend(config)
    small = small_models(loading.load, loading.ops, loading.device)
    try:
        subject.made(small)
    except Exception:  # weights of its own, say, that fit one target
        return _drafter_of_the_run(subject)
    target = AnyText(small.target)
    draws = subject.draws or DRAWS_OF_SMALL_MODELS
    return drafter_checks(lambda: subject.made(small), target.vocabulary, PROMPTS, draws=draws, target=target)


def _drafter_of_the_run(subject: Subject) -> list[Check]:
    from spec_sdk.pipeline import build_pipeline

    pipeline = build_pipeline(subject.settings, subject.registry)
    models = pipeline.models
    target, draws = models.session(models.target), subject.draws or DRAWS_OF_REAL_MODELS
    prompts = [pipeline.tokenizer.encode(text) for text in ("The sky is", "one two three one two three one two")]

    def make() -> Drafter:
        drafter: Drafter = subject.made(models)
        return drafter

    return drafter_checks(make, target.vocabulary, prompts, draws=draws, target=target)


def _attention_verifier(subject: Subject) -> list[Check]:
    verifier = subject.made()
    for layers in LAYERS:
        try:
            verifier.check(layers)
        except UserError:
            continue
        return attention_verifier_checks(verifier, layers=layers)
    return attention_verifier_checks(verifier)


def _constraint(subject: Subject) -> list[Check]:
    from spec_sdk.pipeline import build_pipeline

    pipeline = build_pipeline(subject.settings, subject.registry)
    vocabulary, answers = pipeline.models.target.executor.vocabulary, subject.draws or constraints.ANSWERS
    return constraint_checks(subject.made(), pipeline.tokenizer, vocabulary, answers=answers)


def _task(subject: Subject) -> list[Check]:
    make: Any
    node = {"name": subject.name, **subject.task_options}
    make, config = subject.registry.configure("task", node)
    return task_checks(lambda: make(config), dataclasses.replace(subject.settings, task=node, plugin=None))


def _policy(subject: Subject) -> list[Check]:
    return policy_checks(subject.made, answers=subject.draws or policies.ANSWERS)


MAKERS: Mapping[str, Callable[[Subject], list[Check]]] = {
    "drafter": _drafter,
    "verifier": lambda subject: verifier_checks(subject.made(), draws=subject.draws),
    "sampler": lambda subject: sampler_checks(subject.made, draws=subject.draws or samplers.DRAWS),
    "predictor": lambda subject: predictor_checks(subject.made()),
    "constraint": _constraint,
    "attention_verifier": _attention_verifier,
    "growth": lambda subject: growth_checks(subject.part(), draws=subject.draws or drafters.DRAWS),
    "runner": lambda subject: runner_checks(subject.part),
    "policy": _policy,
    "backend": lambda subject: backend_checks(subject.made()),
    "task": _task,
}
"""Every kind of :data:`spec_sdk.contracts.PLUGIN_KINDS`."""
