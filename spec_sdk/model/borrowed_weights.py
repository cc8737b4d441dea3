"""A draft model that has no embedding, or no output head, of its own: it takes them from the target.

Which ones config.json says: ``"weights_of_target": ["embedding", "head"]``, roles of the architecture's table of
weights. With a tied head the embedding is all there is to take. A tensor ``draft_vocabulary`` in the files names the
tokens that it can draft, the only rows of the output head that it has.

Legend: V vocabulary, R tokens that can be drafted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.model.architectures import weights_of
from spec_sdk.model.decoder import Decoder
from spec_sdk.model.model_source import ModelSource
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.model.weight_table import WeightTable
from spec_sdk.ops.embedding import Embedding
from spec_sdk.ops.linear import Projection
from spec_sdk.ops.quantized import QuantizedMatrix

KEY = "weights_of_target"
ROLES = ("embedding", "head")
VOCABULARY = "draft_vocabulary"
"""Name of the tensor [R], int32."""


def borrowed_names(values: Mapping[str, Any], table: WeightTable, where: str) -> frozenset[str]:
    """Names of the tensors that a config.json of this content leaves to the target.

    Raises UserError, naming ``where``, for anything but a list of :data:`ROLES`.
    """
    listed = values.get(KEY, [])
    if not isinstance(listed, list) or not all(isinstance(role, str) for role in listed):
        raise UserError(f"{where}: {KEY} is {listed!r}, not a list of {' and '.join(ROLES)}")
    for role in listed:
        if role not in ROLES:
            raise UserError(f"{where}: {KEY} has {role!r}{did_you_mean(role, ROLES)}")
    return frozenset(table.name(role) for role in listed if role in table)


def check_vocabulary(token_R: torch.Tensor, vocabulary: int, where: str) -> torch.Tensor:
    """The tokens that a draft model can draft, as int64. Raises UserError unless they are increasing ids below V."""
    ids_R = token_R.long()
    if token_R.dim() != 1 or token_R.is_floating_point() or not len(ids_R) or not bool((ids_R.diff() > 0).all()):
        raise UserError(f"{where}: {VOCABULARY} is no list of increasing token ids")
    if int(ids_R[0]) < 0 or int(ids_R[-1]) >= vocabulary:
        raise UserError(f"{where}: {VOCABULARY} names token {int(ids_R[-1])}, and there are {vocabulary}")
    return ids_R


class BorrowingModel:
    """A draft model with the target's tensors in the place of those that it lacks.

    ``own``: its checkpoint. ``borrowed``: names of the tensors that ``lender``, the target's checkpoint, has.
    ``loaded``: the target in memory, whose ``embedding`` and ``head`` are used as they are where both have the same.
    ``token_R``: what it can draft; None for all tokens. Its head is then made of rows of the lent tensor.

    Raises UserError for a target whose tensors have other shapes.
    """

    def __init__(
        self,
        own: ModelSource,
        borrowed: frozenset[str],
        lender: ModelSource,
        loaded: Decoder | None = None,
        token_R: torch.Tensor | None = None,
    ) -> None:
        self.name, self.config, self.token_R = own.name, own.config, token_R
        self._own, self._borrowed, self._lender = own, borrowed, lender
        self.loaded = loaded
        table, theirs = weights_of(own.config), weights_of(lender.config)
        self._lent: dict[str, str] = {}
        for name in borrowed:
            # a target with a tied head lends its embedding for both
            role = table.entry(name).row.role
            lent = role if role in theirs else "embedding"
            wanted, there = table.shape(role), theirs.shape(lent)
            if wanted != there:
                raise UserError(
                    f"model.draft: {own.name} takes its {role} {list(wanted)} from the target, and that of "
                    f"{lender.name} is {list(there)}; choose the target that it was trained for"
                )
            self._lent[name] = theirs.name(lent)
        takes = {table.entry(name).row.role for name in borrowed}
        same_head = "head" in takes if "head" in table else "embedding" in takes and "head" not in theirs
        self.embedding: Embedding | None = loaded.embedding if loaded and "embedding" in takes else None
        self.head: Projection | None = loaded.output_head if loaded and same_head else None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._own.tokenizer

    def within(self, context: int) -> BorrowingModel:
        return BorrowingModel(self._own.within(context), self._borrowed, self._lender, self.loaded, self.token_R)

    def names(self) -> frozenset[str]:
        return self._own.names() | self._borrowed

    def tensor(self, name: str) -> torch.Tensor:
        source, theirs = self._of(name)
        return source.tensor(theirs)

    def part(self, name: str, axis: int, first: int, end: int) -> torch.Tensor:
        source, theirs = self._of(name)
        return source.part(theirs, axis, first, end)

    def quantized_part(self, name: str, axis: int, first: int, end: int) -> QuantizedMatrix | None:
        source, theirs = self._of(name)
        return source.quantized_part(theirs, axis, first, end)

    def _of(self, name: str) -> tuple[ModelSource, str]:
        return (self._lender, self._lent[name]) if name in self._lent else (self._own, name)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        source, theirs = self._of(name)
        return source.quantized(theirs)
