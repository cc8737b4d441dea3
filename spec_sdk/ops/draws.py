"""What a rule of acceptance is told of a tree: its tokens, and how each of them came about.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, overload

import torch

from spec_sdk.ops.vocabulary_row import SomeLogits

PART = "/"
"""Stands between a drafter's name and that of a part of it."""
DrawKind = Literal["chosen", "with_replacement", "without_replacement"]
DRAW_KINDS: tuple[str, ...] = get_args(DrawKind)


def part_of(drafter: str, part: str) -> str:
    """What a draw by a part of a drafter has as its drafter: ``mixed/suffix``. Such parts are counted one by one."""
    return f"{drafter}{PART}{part}"


class DraftDistribution:
    """A draft distribution that is worked out when it is first read.

    ``logits``: the draft model's, the repetition penalty applied, of all tokens [V] or of some: all that a fused
    sampler reads. They lie where the draft model left them, or in host memory once a rule there needed them. ``known``:
    the probability of each token that was drawn, where whoever drew it knows that; of several different ones, of the
    first.
    """

    def __init__(self, logits: torch.Tensor | SomeLogits, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.logits = logits
        self.known: dict[int, float] = {}
        self._make = make
        self._q_V: torch.Tensor | None = None

    @property
    def logits_V(self) -> torch.Tensor:
        """The logits [V] of all tokens."""
        return self.logits.full_V if isinstance(self.logits, SomeLogits) else self.logits

    @property
    def shape(self) -> torch.Size:
        return self.logits.shape

    @property
    def q_V(self) -> torch.Tensor:
        """The distribution [V] after the sampling transforms. Always the same object."""
        if self._q_V is None:
            self._q_V = self._make(self.logits_V)
        return self._q_V

    @property
    def made(self) -> torch.Tensor | None:
        """``q_V`` if somebody has read it, as whoever draws without replacement in torch must."""
        return self._q_V

    @property
    def given(self) -> torch.Tensor | SomeLogits:
        """What is kept, as it was given: ``q_V`` if it is made, else the logits."""
        return self.logits if self._q_V is None else self._q_V

    @property
    def stored(self) -> torch.Tensor:
        """The same [V], of all tokens."""
        return self.logits_V if self._q_V is None else self._q_V

    def hold(self, stored_V: torch.Tensor) -> None:
        """Keep :attr:`stored` elsewhere: in host memory, where a rule is at work."""
        if self._q_V is None:
            self.logits = stored_V
        else:
            self._q_V = stored_V


class _DistributionField:
    """The field ``q_V`` of a draw: given as a distribution or a :class:`DraftDistribution`, read as a distribution."""

    @overload
    def __get__(self, draw: None, owner: type) -> None: ...
    @overload
    def __get__(self, draw: Draw, owner: type) -> torch.Tensor | None: ...
    def __get__(self, draw: Draw | None, owner: type) -> torch.Tensor | None:
        source = None if draw is None else draw.source
        return source.q_V if isinstance(source, DraftDistribution) else source

    def __set__(self, draw: Draw, value: torch.Tensor | DraftDistribution | None) -> None:
        draw.__dict__["_source"] = value


@dataclass(frozen=True)
class Draw:
    """One draw of a child token at a tree node: all that a lossless verifier must know of it.

    ``kind``
        ``chosen``: picked by top-k, retrieval or any rule that looks at no random number. It is a point mass: accept
        with p(x), else zero p(x) and renormalise.
        ``with_replacement`` / ``without_replacement``: drawn at random from ``q_V``.
    ``q_V``
        The distribution at the parent, after the sampling transforms and *before* any removal; None for ``chosen``.
        It may be given as a :class:`DraftDistribution`, which is worked out when ``q_V`` is first read.
    ``sequence``
        Of a draw without replacement: the number, among those at its parent, of the sequence that it belongs to. The
        i-th draw of a sequence is drawn from q with the tokens before it in that sequence removed. None for others.
    ``drafter``
        Who made it; of a drafter with parts, by :func:`part_of`.
    ``probability``
        Of a chosen token: how probable its drafter takes it to be after its parent. None where it does not say. No rule
        of acceptance reads it.

    Raises ValueError, naming the node, for a draw without replacement without its sequence, or another one with one.
    """

    node: int
    kind: DrawKind
    q_V: _DistributionField = _DistributionField()
    drafter: str = ""
    sequence: int | None = None
    probability: float | None = None

    def __post_init__(self) -> None:
        if (self.sequence is None) == (self.kind == "without_replacement"):
            raise ValueError(f"tree node {self.node}: {misnumbered(self.kind, self.sequence)}")

    @property
    def source(self) -> torch.Tensor | DraftDistribution | None:
        """``q_V`` as it was given: a distribution that nobody has asked for yet is not worked out."""
        source: torch.Tensor | DraftDistribution | None = self.__dict__["_source"]
        return source

    @staticmethod
    def chosen(node: int, drafter: str = "", probability: float | None = None) -> Draw:
        """One of a token that was chosen: of its fields there is nothing to check."""
        made = object.__new__(Draw)
        made.__dict__.update(
            node=node, kind="chosen", _source=None, drafter=drafter, sequence=None, probability=probability
        )
        return made

    def of_node(self, node: int) -> Draw:
        """The same draw in a tree that has its node at another place."""
        if node == self.node:
            return self
        moved = object.__new__(Draw)
        moved.__dict__.update(self.__dict__, node=node)
        return moved


class Drawing(Protocol):
    """What tokens are drawn from, made by a kernel. It is to be used before the next one is asked for."""

    def probability(self, token: int) -> float: ...

    def draw(self, uniform: float) -> int:
        """The first token whose cumulated probability exceeds ``uniform`` times the whole."""

    def remove(self, token: int) -> None:
        """Take a token's probability away, unless no other token has any."""


class DrawnTree(Protocol):
    """What a rule reads of a :class:`~spec_sdk.tree.TokenTree`. Node 0 is the root, children come after their parents.

    ``draws_N[i]``: the draws made at node i, in draw order. ``first_draw_N1[i]``: the number of the first of them among
    all of the tree, node by node; the last entry is how many there are.
    """

    @property
    def token_N(self) -> tuple[int, ...]: ...

    @property
    def draws_N(self) -> tuple[tuple[Draw, ...], ...]: ...

    @property
    def first_draw_N1(self) -> list[int]: ...

    @property
    def size(self) -> int: ...

    def path_to(self, node: int) -> list[int]: ...


def misnumbered(kind: str, sequence: int | None) -> str:
    """Why a draw of this kind cannot have this sequence number."""
    if kind == "without_replacement":
        return f"a draw without replacement needs the number of its sequence, 0 or more, not {sequence}"
    return f"only draws without replacement form sequences, this one is {kind!r} and has sequence {sequence}"
