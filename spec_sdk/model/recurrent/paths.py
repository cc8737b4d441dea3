"""One request's rows of a pass, and which earlier rows each goes on from.

Legend: N rows of the pass, T tree slots, S rows seen: those between a state and the prefix, then T; K tokens that a
convolution sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from spec_sdk.ops.pass_inputs import PassPart

PROMPT_ROWS = 16
"""A chain of more rows is a prompt, or a part of one."""


@dataclass(frozen=True)
class RowPaths:
    """``count`` rows that go to the cache columns from ``first`` on, behind ``prefix`` committed tokens.

    ``part``: whose mask says who sees whom; None for a chain right behind the prefix.
    """

    prefix: int
    first: int
    count: int
    part: PassPart | None
    device: torch.device
    _column: dict[int, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)
    _visible: dict[int, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(part: PassPart, device: torch.device) -> RowPaths:
        """Those of a request's part of a pass."""
        chain = part.mask.is_chain or (part.live == 1 and part.slots == 1)
        return RowPaths(part.mask.prefix, part.write_at, part.live, None if chain else part, device)

    @property
    def end(self) -> int:
        """The column behind the last row."""
        return self.first + self.count

    @cached_property
    def last_position(self) -> int:
        """That of the row farthest from the text's beginning."""
        return self.end - 1 if self.part is None else int(self.part.mask.query_position_N.max())

    @property
    def is_prompt(self) -> bool:
        """Whether these are so many rows of a chain that they are committed, all of them."""
        return self.part is None and self.count > PROMPT_ROWS

    def chunk(self, start: int, end: int) -> RowPaths:
        """Rows ``start`` … ``end - 1`` of a chain, of which the earlier ones count as prefix."""
        assert self.part is None, "a tree's rows are computed together"
        return RowPaths(self.prefix + start, self.first + start, end - start, None, self.device)

    def columns_NK(self, seen: int) -> torch.Tensor:
        """The cache columns of a row and of the ``seen - 1`` rows before it on its path, the oldest first; below 0
        before the text.
        """
        found = self._column.get(seen)
        if found is None:
            back_K = torch.arange(seen - 1, -1, -1, device=self.device)
            if self.part is None:
                found = torch.arange(self.first, self.end, device=self.device)[:, None] - back_K
            else:
                mask = self.part.mask
                position_NK = mask.query_position_N[:, None].long() - back_K
                there_NKT = mask.visible_NT()[:, None] & (mask.key_position_T == position_NK[..., None])
                found = torch.where(position_NK < self.prefix, position_NK, self.prefix + there_NKT.int().argmax(-1))
            self._column[seen] = found
        return found

    def visible_NS(self, state_length: int) -> torch.Tensor:
        """Which rows after a state of so many tokens each row goes on from, itself among them."""
        found = self._visible.get(state_length)
        if found is None:
            if self.part is None:
                found = torch.ones((self.count, self.count), dtype=torch.bool, device=self.device).tril()
            else:
                found = self.part.mask.visible_NT()
            found = torch.nn.functional.pad(found, (self.prefix - state_length, 0), value=True)
            self._visible[state_length] = found
        return found
