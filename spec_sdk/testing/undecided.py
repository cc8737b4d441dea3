"""Random choices that can be enumerated: a procedure is run once for every way in which they can fall.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

Outcome = TypeVar("Outcome")

OTHERWISE = "a random number was used otherwise than by comparing it with plain numbers or tensors"
ROUNDING = 1e-7
"""Where float32 sums differ by as little, as those of a tile and of its tokens do, nothing is to be chosen."""


class NotEnumerable(Exception):
    """A procedure used a random number in a way that cannot be followed, or has too many outcomes."""


class Chooser:
    """Makes the choices of one run: first those of ``script``, then always the first possible one.

    ``untried`` holds the scripts of the runs in which a choice made here falls otherwise.
    """

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.weight = 1.0
        self.untried: list[list[int]] = []
        self._made: list[int] = []

    def choose(self, weights: Sequence[float]) -> int:
        """One of the possible choices, of those ``weights`` (they sum to 1)."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        at = len(self._made)
        if at < len(self.script):
            choice = self.script[at]
        else:
            choice, *others = possible
            self.untried += [[*self._made, other] for other in others]
        self._made.append(choice)
        self.weight *= weights[choice]
        return choice


def outcomes(run: Callable[[Chooser], Outcome], limit: int | None = None) -> Iterator[tuple[Outcome, float]]:
    """Every outcome of ``run`` with its probability; the same outcome may come several times.

    Raises NotEnumerable after ``limit`` of them.
    """
    scripts: list[list[int]] = [[]]
    count = 0
    while scripts:
        if count == limit:
            raise NotEnumerable(f"there are more than {limit} outcomes")
        chooser = Chooser(scripts.pop())
        yield run(chooser), chooser.weight
        scripts += chooser.untried
        count += 1


class Undecided:
    """A number drawn uniformly from [0, 1) that is known no better than it has been looked at.

    Comparing it with a threshold is a choice, which narrows it down for the comparisons after it; so a procedure that
    compares random numbers can be enumerated as it stands, with a tensor number by number. What is computed from it
    (factor · u + offset, modulo 1) shares what is known. Anything else raises NotEnumerable.
    """

    def __init__(
        self, chooser: Chooser, factor: float = 1.0, offset: float = 0.0, known: list[float] | None = None
    ) -> None:
        self.chooser, self.factor, self.offset = chooser, factor, offset
        self.known = [0.0, 1.0] if known is None else known

    def _affine(self, by: float, plus: float) -> Undecided:
        return Undecided(self.chooser, self.factor * by, self.offset * by + plus, self.known)

    def __mul__(self, by: float) -> Undecided:
        return self._affine(_number(by), 0.0)

    __rmul__ = __mul__

    def __truediv__(self, by: float) -> Undecided:
        return self._affine(1.0 / _number(by), 0.0)

    def __add__(self, by: float) -> Undecided:
        return self._affine(1.0, _number(by))

    __radd__ = __add__

    def __sub__(self, by: float) -> Undecided:
        return self._affine(1.0, -_number(by))

    def __rsub__(self, by: float) -> Undecided:
        return self._affine(-1.0, _number(by))

    def __mod__(self, by: float) -> Undecided:
        rest = self
        while not rest < by:
            rest = rest - by
        while rest < 0:
            rest = rest + by
        return rest

    def __lt__(self, threshold: Any) -> Any:
        return self._compared(threshold, self._is_below)

    def __ge__(self, threshold: Any) -> Any:
        return self._compared(threshold, lambda number: not self._is_below(number))

    # a single value has no probability
    __le__, __gt__ = __lt__, __ge__

    def _compared(self, threshold: Any, compare: Callable[[float], bool]) -> Any:
        if isinstance(threshold, np.ndarray):
            # compares each of its numbers with this
            return NotImplemented
        if not isinstance(threshold, torch.Tensor):
            return compare(_number(threshold))
        found = torch.tensor([compare(number) for number in threshold.flatten().tolist()], dtype=torch.bool)
        return found.view(threshold.shape).to(threshold.device)

    def _is_below(self, threshold: float) -> bool:
        if self.factor == 0:
            return self.offset < threshold
        low, high = self.known
        border = (threshold - self.offset) / self.factor
        above = self.factor > 0
        if border - low < ROUNDING or high - border < ROUNDING:
            return (border - low > high - border) == above
        below = self.chooser.choose([high - border, border - low]) == 1
        self.chooser.weight /= high - low
        self.known[below] = border
        return below == above

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _fail(self) -> NoReturn:
        raise NotEnumerable(OTHERWISE)

    def __float__(self) -> float:
        self._fail()

    def __int__(self) -> int:
        self._fail()

    def __index__(self) -> int:
        self._fail()

    def __bool__(self) -> bool:
        self._fail()


def _number(value: Any) -> float:
    """A plain number. Raises NotEnumerable for another undecided one, with which no comparison can be followed, and for
    what is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise NotEnumerable(OTHERWISE) from error
