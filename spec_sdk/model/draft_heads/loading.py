"""From a published head to one that runs beside its target: what does not fit is refused with both numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.block_head import BlockExecutor
from spec_sdk.model.draft_heads.head import DraftHeadExecutor
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.draft_heads.hydra import HydraHeads
from spec_sdk.model.draft_heads.layouts.layout import PublishedHead
from spec_sdk.model.draft_heads.medusa import MedusaHeads
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.ops import Ops
from spec_sdk.say import say

LoadedHead = TypeVar("LoadedHead", DraftHeadExecutor, BlockExecutor, MedusaHeads, HydraHeads)


@dataclass(frozen=True)
class HeadKind(Generic[LoadedHead]):
    """Heads that one drafter drafts with. ``loaded``: what runs them.

    ``methods``: those of their specs; ``in_words``: what the drafter needs, for errors. ``in_target``: where none is
    named, the one among the target's own tensors is meant, instead of one in an installed package. ``noun``: what
    reports call them.
    """

    loaded: type[LoadedHead]
    methods: tuple[str, ...]
    in_words: str
    in_target: bool = False
    noun: str = "head"


EAGLE_HEADS = HeadKind(DraftHeadExecutor, ("eagle", "eagle3"), "a decoder layer, as those of eagle and eagle3")
PREDICTION_MODULES = HeadKind(DraftHeadExecutor, ("mtp",), "a prediction module (MTP)", in_target=True)
PARALLEL_EAGLE_HEADS = HeadKind(DraftHeadExecutor, ("peagle",), "one of P-EAGLE")
BLOCK_HEADS = HeadKind(BlockExecutor, ("dflash", "dspark"), "one that drafts a block: dflash or dspark")
MEDUSA_HEADS = HeadKind(MedusaHeads, ("medusa",), "Medusa's", noun="heads")
HYDRA_HEADS = HeadKind(HydraHeads, ("hydra",), "Hydra's", noun="heads")


def load_head(
    published: PublishedHead,
    kind: HeadKind[LoadedHead],
    target: TargetEnds,
    choices: HeadChoices,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops,
) -> LoadedHead:
    """The head on ``device``. Raises UserError for one of another kind, or that does not suit target or choices."""
    spec, where = published.spec, published.where
    if choices.method not in ("auto", spec.method):
        raise UserError(
            f"drafter.method: {choices.method} is asked for, and {where} is a head of {spec.method} "
            f"({published.layout} layout)"
        )
    if spec.method not in kind.methods:
        raise UserError(
            f"drafter.checkpoint: {where} is a head of {spec.method} ({published.layout} layout), and this drafter "
            f"needs {kind.in_words}"
        )
    spec = spec.as_chosen(choices).beside(target, where)
    taps = spec.fitting_taps(target, where)
    _warn_of_another_target(published, target)
    published.tensors.check(*spec.shapes(len(taps)), spec.ignored)
    weights = HeadWeights(
        published.tensors,
        device,
        dtype,
        ops,
        choices.bits(ops, dtype),
        lambda stored: choices.keeps(stored, ops, dtype),
    )
    head = spec.load(weights, taps, target)
    assert isinstance(head, kind.loaded)
    return head


def _warn_of_another_target(published: PublishedHead, target: TargetEnds) -> None:
    named = (published.target or "").rstrip("/").rsplit("/", 1)[-1]
    if named and named.lower() != target.name.lower():
        say(f"{published.where}: says that it was trained for {published.target}; the target is {target.name}")
