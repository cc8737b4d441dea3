"""Do drawn tokens follow the distributions that they declare, whatever was drawn before them?

A token x drawn from q becomes the number F(x-1) + v q(x), with F the cumulated q and v uniform: the randomised
probability integral transform (Rosenblatt 1952; Brockwell 2007). Drawn soundly, all such numbers are uniform and
independent, however the distributions differ from draw to draw: so a few draws tell a fault, in any vocabulary.

Legend: N tree nodes, V vocabulary, K bins of an axis.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from spec_sdk.testing.statistics import SIGNIFICANCE, SMALLEST_EXPECTATION, goodness_of_fit
from spec_sdk.tree import TokenTree

MOST_BINS, PLACES, LEVELS = 6, 4, 4
"""Bins of an axis; draws of a node and levels of a tree whose dependence on each other is looked at."""

ALL = "all drawn tokens"
Where = tuple[str, ...]


class Axis:
    """A distribution as the interval [0, 1): its tokens lie side by side, the most probable first, or by their ids."""

    def __init__(self, distribution_V: torch.Tensor, best_first: bool) -> None:
        order = (
            distribution_V.argsort(descending=True, stable=True)
            if best_first
            else torch.arange(distribution_V.shape[0])
        )
        end_V = distribution_V[order].cumsum(0)
        self._end_V = torch.empty_like(end_V).index_copy_(0, order, end_V / end_V[-1])
        self._distribution_V = distribution_V / distribution_V.sum()

    def place(self, token: int, within: float) -> float:
        """A number of the token's interval: its end where ``within`` is 0, its start where it is 1."""
        if token >= self._distribution_V.shape[0]:
            return 1.0
        return float(self._end_V[token]) - within * float(self._distribution_V[token])


@dataclass(frozen=True)
class Drawn:
    """A token offered at a node. ``axes``, ``numbers``: of a drawn one, its distribution and its uniform numbers on it,
    best first and by ids.
    """

    token: int
    child: int
    axes: tuple[Axis, ...] = ()
    numbers: tuple[float, ...] = ()


class Evidence:
    """Numbers that should be uniform given others, collected over many trees."""

    def __init__(self, seed: int = 0) -> None:
        self._jitter = random.Random(seed)
        self._uniform: dict[Where, list[tuple[float, ...]]] = defaultdict(list)

    def add(self, tree: TokenTree, next_numbers: Sequence[float] = ()) -> list[Drawn]:
        """Take in a tree, and the random numbers of its request that come after those it was drawn with.

        Returns what was offered at the root.
        """
        offered = [self.offered(tree, node) for node in range(tree.size)]
        for node, items in enumerate(offered):
            depth = tree.depth_N[node]
            for place, later in enumerate(items):
                if not later.numbers:
                    continue
                at = f"draw {place} at depth {depth}"
                self._uniform[ALL,].append(later.numbers[:1])
                for number, order in zip(later.numbers, ("best first", "by ids"), strict=True):
                    self._uniform[at, order].append((number,))
                if place < PLACES and depth < LEVELS:
                    self._beside(at, items[:place], [f"draw {i} there" for i in range(place)], later)
                if node and place < 2 and depth < LEVELS:
                    above = offered[tree.parent_N[node]][:PLACES]
                    which = next((i for i, item in enumerate(above) if item.child == node), None)
                    if which is not None:
                        names = [f"draw {i} at its parent, the {which}th child" for i in range(len(above))]
                        self._beside(at, above, names, later)
            for i, number in enumerate(next_numbers if depth < 2 else ()):
                for place, earlier in enumerate(items[:2]):
                    if earlier.numbers:
                        key = (f"random number {i} after the tree", f"draw {place} at depth {depth}")
                        self._uniform[key].append((earlier.numbers[1], number))
        for i, number in enumerate(next_numbers):
            self._uniform[f"random number {i} after the tree",].append((number,))
        return offered[0]

    def follow(self, before: Sequence[Drawn], after: Sequence[Drawn]) -> None:
        """What was offered at the roots of two successive trees of a request."""
        for place, later in enumerate(after[:2]):
            names = [f"draw {i} at the root of the tree before" for i in range(len(before[:2]))]
            if later.numbers:
                self._beside(f"draw {place} at the root", before[:2], names, later)

    def check(self) -> int:
        """Raise AssertionError for numbers that are not uniform; return how many comparisons were made."""
        tests = [(where, numbers) for where, numbers in self._uniform.items() if _bins(len(numbers), len(numbers[0]))]
        # what is said of all draws comes last: where they went wrong says more
        tests.sort(key=lambda test: test[0][0] == ALL)
        for where, numbers in tests:
            probability = _uniformity(numbers)
            if probability >= SIGNIFICANCE / 2 / len(tests):
                continue
            what, *others = where
            beside = [other for other in others if other not in ("best first", "by ids")]
            fault = f"depend on {' and '.join(beside)}" if beside else "do not follow the declared q_V"
            if what.startswith("random number"):
                fault = fault.replace("follow the declared q_V", "come anew for every request")
            raise AssertionError(f"{what}: {len(numbers)} times, they {fault} (χ² probability {probability:.1e})")
        return len(tests)

    def offered(self, tree: TokenTree, node: int) -> list[Drawn]:
        """What was offered at a node, in draw order."""
        distributions = dict(distributions_of_draws(tree, node))
        items = []
        for place, draw in enumerate(tree.draws_N[node]):
            token = tree.token_N[draw.node]
            if place not in distributions:
                items.append(Drawn(token, draw.node))
                continue
            axes = Axis(distributions[place], True), Axis(distributions[place], False)
            within = self._jitter.random()
            items.append(Drawn(token, draw.node, axes, tuple(axis.place(token, within) for axis in axes)))
        return items

    def _beside(self, at: str, earlier: Sequence[Drawn], names: Sequence[str], later: Drawn) -> None:
        for name, item in zip(names, earlier, strict=True):
            # where the earlier token lies among the later one's: the same token, or one that goes with it
            self._uniform[at, name, "by ids"].append((later.axes[1].place(item.token, 0.5), later.numbers[1]))
            if item.numbers:
                self._uniform[at, name].append((item.numbers[1], later.numbers[1]))
        drawn = [(name, item.numbers[1]) for name, item in zip(names, earlier, strict=True) if item.numbers]
        for (one, x), (other, y) in zip(drawn, drawn[1:], strict=False):
            self._uniform[at, one, other].append((x, y, later.numbers[1]))


def distributions_of_draws(tree: TokenTree, node: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Of every random draw at a node: its place in draw order, and the distribution [V] it was drawn from, float64."""
    left: dict[int, torch.Tensor] = {}
    for place, draw in enumerate(tree.draws_N[node]):
        if draw.q_V is None:
            continue
        q_V = draw.q_V.double().cpu()
        if draw.sequence is not None:
            q_V = left.get(draw.sequence, q_V)
            rest_V = q_V.clone()
            rest_V[tree.token_N[draw.node]] = 0
            left[draw.sequence] = rest_V
        yield place, q_V / q_V.sum()


def _bins(count: int, axes: int) -> int:
    """How many bins each axis may have, so that every cell expects enough; 0 if that leaves nothing to compare."""
    bins = MOST_BINS if axes > 1 else 20
    while bins > 1 and count / bins**axes < SMALLEST_EXPECTATION:
        bins -= 1
    return bins if bins > 1 else 0


def _uniformity(numbers: Sequence[tuple[float, ...]]) -> float:
    """χ² probability of the last number of each being uniform, given the others."""
    axes = len(numbers[0])
    bins = _bins(len(numbers), axes)
    observed = torch.zeros((bins ** (axes - 1), bins), dtype=torch.float64)
    for point in numbers:
        *given, last = (min(max(int(x * bins), 0), bins - 1) for x in point)
        row = 0
        for cell in given:
            row = row * bins + cell
        observed[row, last] += 1
    expected = observed.sum(1, keepdim=True).expand(-1, bins) / bins
    return goodness_of_fit(observed.flatten(), expected.flatten())
