"""A schema's numbers: which ones an answer can be held to.

llguidance reads them as doubles and goes on with what is nearest; the remainders of a ``multipleOf`` it counts one by
one, in memory that nothing bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from spec_sdk.errors import UserError

LARGEST = 2**53 - 1
"""Up to here a double tells every whole number from its neighbours."""
MOST_DECIMALS = 60
"""Of a bound: its expression is too long for llguidance with more."""
LARGEST_MULTIPLE = 10**8
MOST_DECIMALS_OF_MULTIPLE = 8
LARGEST_DIVISOR = 99_999
"""Of a ``multipleOf`` without its powers of ten: so many remainders are told apart."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COMBINED = ("allOf", "anyOf", "oneOf", "$ref")


def check_numbers(schemas: Iterable[tuple[str, Any]]) -> None:
    """Raise UserError for the first number that an answer could not be held to; ``schemas``: where each one stands."""
    divisors, last, combined = {1}, "", False
    for place, one in schemas:
        if not isinstance(one, dict):
            continue
        combined = combined or any(keyword in one for keyword in COMBINED)
        for keyword in BOUNDS:
            if keyword in one:
                _check_bound(one[keyword], f"{place}.{keyword}")
        for keyword in ("const", "enum"):
            for number in _numbers(one.get(keyword)):
                _check_size(number, f"{place}.{keyword}")
        if "multipleOf" in one:
            last = f"{place}.multipleOf"
            divisors.add(_divisor(one["multipleOf"], last))
    # several schemas of one number hold it to the least common multiple
    if combined and math.lcm(*divisors) > LARGEST_DIVISOR:
        raise UserError(f"{last}: it and the others have more than {LARGEST_DIVISOR} as their least common multiple")


def _check_bound(value: Any, where: str) -> None:
    number = _decimal(value, where)
    _check_size(value, where)
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > MOST_DECIMALS:
        raise UserError(f"{where}: {value} has more than {MOST_DECIMALS} decimals")


def _check_size(number: float, where: str) -> None:
    if not abs(number) <= LARGEST:
        raise UserError(f"{where}: {_short(number)} must be between -{LARGEST} and {LARGEST}")


def _divisor(value: Any, where: str) -> int:
    """The number without its powers of ten."""
    number = _decimal(value, where)
    if not 0 < number <= LARGEST_MULTIPLE:
        raise UserError(f"{where}: {_short(value)} must be above 0, and {LARGEST_MULTIPLE} at most")
    _, digits, exponent = number.normalize().as_tuple()
    divisor = int("".join(map(str, digits)))
    if divisor > LARGEST_DIVISOR:
        raise UserError(f"{where}: {value} has more than {len(str(LARGEST_DIVISOR))} significant digits")
    if isinstance(exponent, int) and -exponent > MOST_DECIMALS_OF_MULTIPLE:
        raise UserError(f"{where}: {value} has more than {MOST_DECIMALS_OF_MULTIPLE} decimals")
    return divisor


def _decimal(value: Any, where: str) -> Decimal:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"{where}: {json.dumps(value)[:80]} must be a number")
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a JSON value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)


def _short(number: float) -> str:
    text = str(number)
    return text if len(text) <= 40 else f"{text[:40]}…"
