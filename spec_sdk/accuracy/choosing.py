"""Which samplers are compared: named in a list, each at every scale and depth, checked before a model is loaded."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence

from spec_sdk.accuracy.records import SamplerChoice
from spec_sdk.bench.chosen import Chosen, chosen_pipelines
from spec_sdk.errors import UserError
from spec_sdk.registry import Registry

SAMPLERS = "task.samplers"
SCALES = ("alpha", "beta")
"""The options of a sampler that has scales."""


def chosen_samplers(
    samplers: Sequence[str],
    scales: Sequence[float],
    depths: Sequence[int],
    pipeline: Sequence[str],
    vanilla: Chosen,
    shared: Sequence[str],
) -> list[tuple[SamplerChoice, Chosen]]:
    """Every sampler in the ``pipeline`` (its name, and options after it), the first at each depth as the baseline.

    ``scales``: s for α = −s and β = s, of samplers that have these and are not given any. Without ``depths`` the
    pipeline's own policy chooses. Raises UserError for what no run could be made of.
    """
    registry, found = Registry.discover(), list[tuple[SamplerChoice, Chosen]]()
    gammas: list[int | None] = [*depths] or [None]
    for depth in gammas:
        policy = [] if depth is None else ["policy=fixed", f"policy.depth={depth}"]
        baseline = ""
        for text in samplers:
            for label, name, options in _at_scales(text, scales, registry):
                label += "" if depth is None else f" γ={depth}"
                baseline = baseline or label
                overrides = [*pipeline, *policy, f"sampler={name}", *options]
                (chosen,) = chosen_pipelines([shlex.join(overrides)], vanilla, shared, "pipeline")
                _, config = registry.configure("sampler", chosen.settings.sampler)
                alpha, beta = (getattr(config, option, None) for option in SCALES)
                choice = SamplerChoice(label, name, baseline, alpha, beta, depth)
                if any(label == other.candidate for other, _ in found):
                    raise UserError(f"{SAMPLERS}: '{label}' stands there twice")
                found.append((choice, dataclasses.replace(chosen, name=label)))
    return found


def _at_scales(text: str, scales: Sequence[float], registry: Registry) -> Iterator[tuple[str, str, list[str]]]:
    """A label, the sampler's name, and its options, for every scale that it is to have."""
    try:
        name, *options = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{SAMPLERS}: {text!r} cannot be read: {error}") from error
    try:
        config = registry.get("sampler", name).Config
    except UserError as error:
        raise UserError(f"{SAMPLERS}: {str(error).partition(': ')[2]}") from error
    for option in options:
        if not option.startswith("sampler."):
            raise UserError(f"{SAMPLERS}: '{text}': samplers differ in sampler.*; {option} is of the whole run")
    own = {field.name for field in dataclasses.fields(config)}
    given = {option.partition("=")[0].removeprefix("sampler.") for option in options}
    if not scales or not own.issuperset(SCALES) or given.intersection(SCALES):
        yield " ".join([name, *options]), name, options
        return
    for scale in scales:
        yield (
            " ".join([name, f"±{scale:g}", *options]),
            name,
            [f"sampler.alpha={-scale!r}", f"sampler.beta={scale!r}", *options],
        )
