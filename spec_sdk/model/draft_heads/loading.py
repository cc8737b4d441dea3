"""From a published head to one that runs beside its target: what does not fit is refused with both numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.block_head import BlockExecutor
from spec_sdk.model.draft_heads.block_spec import BlockSpec
from spec_sdk.model.draft_heads.head import DraftHeadExecutor, HeadParts
from spec_sdk.model.draft_heads.head_spec import DraftHeadSpec, HeadWeights
from spec_sdk.model.draft_heads.hydra import HydraHeads
from spec_sdk.model.draft_heads.hydra_spec import HydraSpec
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.medusa import MedusaHeads
from spec_sdk.model.draft_heads.medusa_spec import MedusaSpec
from spec_sdk.model.draft_heads.mtp_spec import MtpSpec
from spec_sdk.model.draft_heads.published_spec import PublishedSpec
from spec_sdk.model.source_progress import notice
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops

ChosenSpec = TypeVar("ChosenSpec", DraftHeadSpec, BlockSpec)
HEADS = ("eagle", "eagle3")
"""Methods of EAGLE heads."""
BLOCK_HEADS = ("dflash", "dspark")
"""Methods of heads that draft a block."""


@dataclass(frozen=True)
class HeadChoices:
    """What the user says of a head. ``method``: the one that it must be; auto is eagle or eagle3. ``target_layers``:
    those to read in place of the ones that its files mean. ``context``: most tokens to draft for, in place of its own.
    ``state``: of a prediction module, the target's state that it reads: before or after the final norm, or auto.
    ``weights``: dense, in int8 or int4, or auto: int8 where the backend multiplies them as fast.
    """

    method: str = "auto"
    target_layers: tuple[int, ...] | None = None
    context: int | None = None
    state: str = "auto"
    weights: str = "dense"

    def bits(self, ops: Ops, dtype: torch.dtype) -> int | None:
        """The bits of its matrices; None for ``dtype``. What rounding changes is what is drafted, never the output."""
        if self.weights == "auto":
            return 8 if ops.fast_in_bits(8, dtype) else None
        return {"int8": 8, "int4": 4}.get(self.weights)


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
    if choices.method in HEADS and choices.method != spec.method:
        raise UserError(
            f"drafter.method: {choices.method} is asked for, and {where} is a head of {spec.method} "
            f"({published.layout} layout)"
        )
    if choices.method == "mtp":
        if not isinstance(spec, MtpSpec):
            raise _another_method(published, "a prediction module (MTP)")
        if choices.state != "auto":
            spec = replace(spec, variant=replace(spec.variant, reads_normalized=choices.state == "after_norm"))
    elif spec.method not in HEADS or not isinstance(spec, DraftHeadSpec):
        raise _another_method(published, "a decoder layer, as those of eagle and eagle3")
    spec = _as_chosen(spec, choices)
    taps = _checked(published, spec, target)
    weights = HeadWeights(published.tensors, device, dtype, ops, choices.bits(ops, dtype))
    parts = HeadParts(
        config=spec.config,
        block=spec.block(weights),
        embedding=weights.embedding(target),
        output_head=weights.output_head(target),
        taps=taps,
    )
    return DraftHeadExecutor(spec.build(weights, parts, target), ops)


def load_medusa_heads(
    published: PublishedHead, target: TargetEnds, device: torch.device, dtype: torch.dtype, ops: Ops
) -> MedusaHeads:
    """The heads on ``device``. Raises UserError for ones that do not suit the target, and for other heads."""
    spec = published.spec
    if not isinstance(spec, MedusaSpec):
        raise _another_method(published, "Medusa's")
    taps = _checked(published, spec, target)
    return spec.load(HeadWeights(published.tensors, device, dtype, ops), taps, target)


def load_hydra_heads(
    published: PublishedHead, target: TargetEnds, device: torch.device, dtype: torch.dtype, ops: Ops
) -> HydraHeads:
    """The heads on ``device``. Raises UserError for ones that do not suit the target, and for other heads."""
    spec = published.spec
    if not isinstance(spec, HydraSpec):
        raise _another_method(published, "Hydra's")
    spec = spec.beside(target, published.where)
    taps = _checked(published, spec, target)
    return spec.load(HeadWeights(published.tensors, device, dtype, ops), taps, target, ops)


def load_block_head(
    published: PublishedHead,
    target: TargetEnds,
    choices: HeadChoices,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops,
) -> BlockExecutor:
    """A head that drafts a block, on ``device``. Raises UserError for one that does not suit, and for other heads."""
    spec = published.spec
    if not isinstance(spec, BlockSpec):
        raise _another_method(published, "one that drafts a block: dflash or dspark")
    spec = _as_chosen(spec, choices)
    taps = _checked(published, spec, target)
    return BlockExecutor(spec.load(HeadWeights(published.tensors, device, dtype, ops), taps, target), ops)


def _as_chosen(spec: ChosenSpec, choices: HeadChoices) -> ChosenSpec:
    """The spec with the target layers and the context that the user wants."""
    if choices.target_layers is not None:
        spec = spec.with_taps(choices.target_layers)
    return spec if choices.context is None else spec.within(choices.context)


def _checked(published: PublishedHead, spec: PublishedSpec, target: TargetEnds) -> tuple[int, ...]:
    """The target layers that the head reads. Raises UserError unless target and tensors fit."""
    taps = spec.fitting_taps(target, published.where)
    _warn_of_another_target(published, target)
    required, optional = spec.shapes(len(taps))
    published.tensors.check(required, optional, spec.ignored)
    return taps


def _another_method(published: PublishedHead, wanted: str) -> UserError:
    return UserError(
        f"drafter.checkpoint: {published.where} is a head of {published.spec.method} ({published.layout} layout), and "
        f"this drafter needs {wanted}"
    )


def _warn_of_another_target(published: PublishedHead, target: TargetEnds) -> None:
    named = (published.target or "").rstrip("/").rsplit("/", 1)[-1]
    if named and named.lower() != target.name.lower():
        notice(f"{published.where}: says that it was trained for {published.target}; the target is {target.name}")
