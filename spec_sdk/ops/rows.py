"""Where a rule of acceptance gets the distributions that it compares: from a sampler, row by row, when it asks.

Legend: N tree nodes, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from spec_sdk.errors import UnusableLogits, WrongDraw
from spec_sdk.ops.draws import DraftDistribution, Draw, DrawnTree
from spec_sdk.ops.inversion import first_beyond
from spec_sdk.ops.residual import remove, residual

Uniforms = Callable[[int], Sequence[float]]
"""Gives the next so many random numbers of [0, 1)."""
Decision = tuple[list[int], int]
"""The accepted nodes in order, beginning with the root, and the token after the last of them."""


class Shaping(Protocol):
    """How logits become probabilities: the fields of :class:`~spec_sdk.contracts.SamplingParams` of that name."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...

    @property
    def filtered(self) -> bool: ...


@dataclass(frozen=True)
class FromLogits:
    """All rows of a tree as a kernel can work them out by itself: from the target's logits and the draws' own.

    ``sigmoid``: α and β where drawn tokens are judged by a sigmoid of the logits instead of their softmax.
    """

    logits_NV: torch.Tensor
    shaping: Shaping
    sigmoid: tuple[float, float] | None = None


class Rows(ABC):
    """The distributions of one scored tree. A row that no rule asks for need not be worked out.

    ``logits_NV[i]``: the target's logits for the token after node i. ``greedy``: sampling at temperature 0.
    ``from_logits``: set where a kernel may decide without asking for rows.

    A rule in torch runs on the host. Before it does, :meth:`unread` is read, together with that of other requests, and
    :meth:`hold` takes it; the rule then waits for no device.
    """

    from_logits: FromLogits | None = None

    def __init__(self, tree: DrawnTree, logits_NV: torch.Tensor, greedy: bool) -> None:
        self.tree = tree
        self.logits_NV = logits_NV
        self.greedy = greedy
        self._choices: list[int] | None = None
        self._held: dict[torch.Tensor, torch.Tensor] = {}

    def unread(self, choices_only: bool) -> list[torch.Tensor]:
        """What a rule needs of the device, to be read at once: the choices, or all logits, with those drawn from."""
        if choices_only:
            return [self.choice_N()]
        return [self.logits_NV, *(stored(source) for source in self._sources())]

    def hold(self, host: Sequence[torch.Tensor], choices_only: bool) -> None:
        """Go on with what :meth:`unread` returned, in host memory."""
        if choices_only:
            self._choices = host[0].tolist()
            return
        self.logits_NV = host[0]
        for source, held in zip(self._sources(), host[1:], strict=True):
            if isinstance(source, DraftDistribution):
                source.hold(held)
            else:
                self._held[source] = held

    @abstractmethod
    def target(self, node: int) -> torch.Tensor:
        """The target's distribution [V] after ``node``, float32, the caller's to write to until the next call.

        Raises UnusableLogits, whose row is the node, if the node's logits are not usable.
        """

    @abstractmethod
    def draft(self, draw: Draw, node: int) -> torch.Tensor:
        """The distribution [V] that ``draw``, made at ``node``, was drawn from, beside the target's rows.

        Before any removal. Not to be written to, and to be read until the next call. Raises UnusableLogits, whose row
        is the node, for draft logits that are not usable.
        """

    @abstractmethod
    def choice_N(self) -> torch.Tensor:
        """After each node the token under greedy sampling, integers [N] where the logits are: the lowest id on ties,
        -1 for logits that are not usable.
        """

    def choices(self) -> list[int]:
        """The same in host memory. Raises UnusableLogits, whose row is the node, if there is one without a choice."""
        choices = self.choice_N().tolist() if self._choices is None else self._choices
        if min(choices) < 0:
            raise UnusableLogits(next(node for node, token in enumerate(choices) if token < 0))
        return choices

    def source(self, draw: Draw) -> torch.Tensor | DraftDistribution:
        """What ``draw`` was drawn from, in host memory if a rule on the host is at work. Not for a chosen token."""
        assert draw.source is not None, "a chosen token was drawn from no distribution"
        return draw.source if isinstance(draw.source, DraftDistribution) else self._held.get(draw.source, draw.source)

    def known(self, draw: Draw) -> float | None:
        """The probability of the drawn token in :meth:`draft` where it is remembered from drawing it."""
        return None

    def keep(self, row_V: torch.Tensor) -> torch.Tensor:
        """A row of :meth:`target` or :meth:`draft`, not to be written to, as it is whatever is asked for after it."""
        return row_V.clone()

    def spare(self, beside_V: torch.Tensor) -> torch.Tensor:
        """A row [V] to write to that is not ``beside_V``, as which it looks."""
        return torch.empty_like(beside_V)

    def left(self, node: int) -> Left:
        """What a rule takes from, draw by draw, at ``node``."""
        return Left(self, node)

    def _sources(self) -> list[torch.Tensor | DraftDistribution]:
        """The distinct distributions that the tree's tokens were drawn from."""
        drawn = (draw.source for draws in self.tree.draws_N for draw in draws if draw.source is not None)
        return list(dict.fromkeys(drawn))


def stored(source: torch.Tensor | DraftDistribution) -> torch.Tensor:
    """The tensor [V] that a draft distribution is kept as."""
    return source.stored if isinstance(source, DraftDistribution) else source


class Left:
    """What is left of the target's distribution p at a node while its draws are rejected one after the other.

    A rejected draw from q leaves norm(max(p − q, 0)), a rejected chosen token p without it. q loses the token for the
    draws after it in its sequence.
    """

    def __init__(self, rows: Rows, node: int) -> None:
        self.rows = rows
        self.node = node
        self.p_V = rows.target(node)
        # after the last rejection the next token comes from max(p − q, 0), which is not written down
        self._less_V: torch.Tensor | None = None
        self._rejected: Draw | None = None
        self._q_V: torch.Tensor | None = None
        self._undrawn: dict[int, torch.Tensor] = {}

    def p(self, token: int) -> float:
        """The probability of ``token`` in what is left."""
        return float(self.p_V[token])

    def q(self, draw: Draw) -> float:
        """The probability with which ``draw`` gave its token; of a chosen one 1.

        Raises ValueError, naming the node, if by its distribution it could not have.
        """
        self._q_V = None
        if draw.source is None:
            return 1.0
        if draw.sequence in self._undrawn:
            self._q_V = self._undrawn[draw.sequence]
        q = self.rows.known(draw) if self._q_V is None else None
        if q is None:
            self._q_V = self._draft(draw)
            q = float(self._q_V[self.rows.tree.token_N[draw.node]])
        return possible(q, self.rows.tree, draw)

    def reject(self, draw: Draw, last: bool) -> None:
        """Go on from what the rejection of ``draw`` leaves. ``last``: only the next token is asked for after it."""
        token = self.rows.tree.token_N[draw.node]
        if draw.source is None:
            remove(self.p_V, token, normalised=not last)
            return
        q_V = self._draft(draw)
        if last:
            self._less_V, self._rejected = q_V, draw
            return
        left_V = residual(self.p_V, q_V, self.rows.spare(self.p_V))
        if left_V is self.p_V and q_V.isnan().any():
            raise not_a_number(self.rows.tree, draw)
        self.p_V = left_V
        if draw.sequence is not None:
            if draw.sequence not in self._undrawn:
                self._undrawn[draw.sequence] = q_V.clone()
            remove(self._undrawn[draw.sequence], token)

    def draw(self, uniform: float) -> int:
        """The next token, drawn from what is left by inversion. Raises UnusableLogits if there is no mass, and
        ValueError, naming the node, where a draft distribution took it away that is NaN somewhere.
        """
        token = first_beyond(self.p_V, uniform, self._less_V)
        if token < 0:
            if self._rejected is not None and self._less_V is not None and self._less_V.isnan().any():
                raise not_a_number(self.rows.tree, self._rejected)
            raise UnusableLogits(self.node)
        return token

    def _draft(self, draw: Draw) -> torch.Tensor:
        """q [V] of the draw that is being tried: read once, for its test and its rejection."""
        return self.rows.draft(draw, self.node) if self._q_V is None else self._q_V


def possible(q: float, tree: DrawnTree, draw: Draw) -> float:
    """``q``, with which ``draw`` gave its token. Raises ValueError, naming the node, if it could not have."""
    if not q > 0:
        raise impossible(q, tree, draw)
    return q


def not_a_number(tree: DrawnTree, draw: Draw) -> WrongDraw:
    """The error of a draw whose distribution is NaN at other tokens than the drawn one."""
    return WrongDraw(draw.node, draw.drafter, tree.token_N[draw.node], "that is NaN elsewhere")


def impossible(q: float, tree: DrawnTree, draw: Draw) -> WrongDraw:
    """The error of a draw that says it gave a token of probability ``q``, which is 0 or none."""
    return WrongDraw(draw.node, draw.drafter, tree.token_N[draw.node], f"in which that token has probability {q}")
