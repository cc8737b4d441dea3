"""In which bits the weights of a run are: the option ``model.weights``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_sdk.model.architectures import weights_of
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.ops.quantized import GROUP, QuantizedMatrix
from spec_sdk.ops.quantizing import quantize

LOOKED_UP = ("embedding", "head")
"""Roles that have at least 8 bits: what is lost in them is lost for every token."""


def kept_in_bits(choice: str, role: str, stored: int | None, fast: Callable[[int], bool]) -> int | None:
    """The bits that a matrix of ``role`` has in memory under ``model.weights=choice``; None: floating point.

    ``stored``: the bits in which the checkpoint has it, None for floating point. ``fast``: whether the backend
    multiplies weights of so many bits about as fast as others.
    """
    if choice == "dense":
        return None
    if choice == "auto":
        return stored if stored is not None and fast(stored) else None
    if stored is not None:
        return stored
    return 8 if choice == "int8" or role in LOOKED_UP else 4


class ChosenWeights:
    """A model whose matrices are in the bits that ``choice`` gives them; ``fast`` as for :func:`kept_in_bits`.

    Those that are stored in floating point and shall not be are quantized as they are asked for. One whose rows are not
    whole groups of 32 stays as it is.
    """

    def __init__(self, source: ModelSource, choice: str, fast: Callable[[int], bool]) -> None:
        self.name = source.name
        self.config = source.config
        self._source = source
        self._choice, self._fast = choice, fast
        self._table = weights_of(source.config)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._source.tokenizer

    def within(self, context: int) -> ChosenWeights:
        return ChosenWeights(self._source.within(context), self._choice, self._fast)

    def names(self) -> frozenset[str]:
        return self._source.names()

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(name)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        """Some rows (``axis`` 0) or columns. Columns that are not whole groups are those of the matrix in its bits,
        expanded: whoever has all of it multiplies with the same numbers.
        """
        if axis and (first % GROUP or end % GROUP):
            begin, last = first - first % GROUP, -(-end // GROUP) * GROUP
            if last <= self._table.shape(self._table.entry(name).row.role)[1]:
                around = self.quantized_part(name, axis, begin, last)
                if around is not None:
                    return around.dequantized(torch.float32)[:, first - begin : end - begin]
        return self._source.part(name, axis, first, end)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self._in_bits(name, self._source.quantized(name), lambda: self._source.tensor(name))

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        if axis and (first % GROUP or end % GROUP):
            return None
        stored = self._source.quantized_part(name, axis, first, end)
        return self._in_bits(name, stored, lambda: self._source.part(name, axis, first, end))

    def _in_bits(
        self, name: str, stored: QuantizedMatrix | None, read: Callable[[], torch.Tensor]
    ) -> QuantizedMatrix | None:
        role, stored_bits = self._table.entry(name).row.role, None if stored is None else stored.bits
        bits = kept_in_bits(self._choice, role, stored_bits, self._fast)
        if bits is None:
            return None
        if stored is not None:
            return stored
        return quantize(read(), bits) if self._table.shape(role)[1] % GROUP == 0 else None
