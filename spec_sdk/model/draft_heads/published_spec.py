"""What all published heads say of themselves, whichever way they draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar, Self

from spec_sdk.errors import UserError
from spec_sdk.model.draft_heads.head_choices import HeadChoices
from spec_sdk.model.draft_heads.head_weights import HeadWeights
from spec_sdk.model.target_ends import TargetEnds
from spec_sdk.model.weight_table import Shape


class PublishedSpec(ABC):
    """A head before it is loaded."""

    method: ClassVar[str]
    """What it is called as a way of drafting."""
    target_hidden_size: int
    """Of the target that it was trained for; a field of the subclass."""

    @property
    @abstractmethod
    def target_vocabulary(self) -> int:
        """Of the target that it was trained for."""

    @abstractmethod
    def taps(self, target_layers: int) -> tuple[int, ...]:
        """The layers of a target of so many that it reads."""

    @abstractmethod
    def shapes(self, taps: int) -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
        """The tensors of a head that reads so many layers: those that it must have, and those that it may."""

    @property
    def ignored(self) -> Collection[str]:
        """Tensors that may be there and are not read."""
        return ()

    def as_chosen(self, choices: HeadChoices) -> PublishedSpec:
        """The head as the user wants it. By default there is no choice. Raises UserError for what cannot be chosen."""
        return self

    def beside(self, target: TargetEnds, where: str) -> Self:
        """With what files do not say and the target does. By default that is nothing."""
        return self

    @abstractmethod
    def load(self, weights: HeadWeights, taps: tuple[int, ...], target: TargetEnds) -> object:
        """The head, ready to run, where ``weights`` are; what it is, its :class:`HeadKind` says."""

    def fitting_taps(self, target: TargetEnds, where: str) -> tuple[int, ...]:
        """The target layers that the head reads. Raises UserError unless the target is of its size."""
        for what, wanted, has in (
            ("hidden size", self.target_hidden_size, target.hidden_size),
            ("vocabulary", self.target_vocabulary, target.vocabulary),
        ):
            if wanted != has:
                raise UserError(
                    f"{where}: the head is made for a target of {what} {wanted}, and {target.name} has {has}"
                )
        taps = self.taps(target.layers)
        if min(taps) < 0 or max(taps) > target.layers or len(set(taps)) < len(taps):
            raise UserError(
                f"{where}: the head reads layers {', '.join(map(str, taps))} of its target, and {target.name} has "
                f"{target.layers}; name different ones with drafter.target_layers if it is made for this target"
            )
        return taps
