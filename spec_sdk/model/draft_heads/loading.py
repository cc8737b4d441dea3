"""From a published head to one that runs beside its target: what does not fit is refused with both numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.head import DraftHeadExecutor, HeadParts
from spec_sdk.model.draft_heads.head_spec import DraftHeadSpec, HeadWeights
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.source_progress import notice
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops


@dataclass(frozen=True)
class HeadChoices:
    """What the user says of a head. ``method``: auto, or the one that it must be. ``target_layers``: those to read in
    place of the ones that its files mean. ``context``: most tokens to draft for, in place of its own.
    """

    method: str = "auto"
    target_layers: tuple[int, ...] | None = None
    context: int | None = None


def load_draft_head(
    published: PublishedHead,
    target: TargetEnds,
    choices: HeadChoices,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops,
) -> DraftHeadExecutor:
    """The head on ``device``. Raises UserError for one that does not suit the target or the choices."""
    spec, where = published.spec, published.where
    if choices.method not in ("auto", spec.method):
        raise UserError(
            f"drafter.method: {choices.method} is asked for, and {where} is a head of {spec.method} "
            f"({published.layout} layout)"
        )
    if choices.target_layers is not None:
        spec = spec.with_taps(choices.target_layers)
    if choices.context is not None:
        spec = spec.within(choices.context)
    taps = _fitting_taps(spec, target, where)
    _warn_of_another_target(published, target)
    required, optional = spec.shapes(len(taps))
    published.tensors.check(required, optional, spec.ignored)
    weights = HeadWeights(published.tensors, device, dtype, ops)
    has_head = "lm_head.weight" in published.tensors
    parts = HeadParts(
        config=spec.config,
        block=weights.block(weights.read_if_any("layers.0.hidden_norm.weight")),
        embedding=weights.embedding(target),
        output_head=weights.projection("lm_head") if has_head else target.output_head,
        vocabulary=weights.vocabulary(target.vocabulary),
        taps=taps,
    )
    return DraftHeadExecutor(spec.build(weights, parts, target), ops)


def _fitting_taps(spec: DraftHeadSpec, target: TargetEnds, where: str) -> tuple[int, ...]:
    """The target layers that the head reads. Raises UserError unless the target is of its size."""
    for what, wanted, has in (
        ("hidden size", spec.target_hidden_size, target.hidden_size),
        ("vocabulary", spec.config.vocab_size, target.vocabulary),
    ):
        if wanted != has:
            raise UserError(f"{where}: the head is made for a target of {what} {wanted}, and {target.name} has {has}")
    taps = spec.taps(target.layers)
    if min(taps) < 0 or max(taps) > target.layers or len(set(taps)) < len(taps):
        raise UserError(
            f"{where}: the head reads layers {_listed(taps)} of its target, and {target.name} has {target.layers}; "
            "name different ones with drafter.target_layers if it is made for this target"
        )
    return taps


def _warn_of_another_target(published: PublishedHead, target: TargetEnds) -> None:
    named = (published.target or "").rstrip("/").rsplit("/", 1)[-1]
    if named and named.lower() != target.name.lower():
        notice(f"{published.where}: says that it was trained for {published.target}; the target is {target.name}")


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
