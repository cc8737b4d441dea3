"""What all published heads say of themselves, whichever way they draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from spec_sdk.errors import UserError
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
