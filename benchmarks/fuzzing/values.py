"""Values that nobody means, and JSON with one of them put somewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

LONG = "a" * 300
TEXTS = (
    *("", " ", "null", "true", "false", "nan", "inf", "-inf", ".nan", ".inf", "NaN", "-1", "0", "1", "2", "3", "-0.0"),
    *("1e400", "1e-400", "1.5", "0.5", "0x10", "1_000", "9" * 25, str(2**31), str(2**63), str(2**64), str(-(2**63))),
    *("'a'", '"', "'", "[", "]", "[]", "[[]]", "[-1]", "[0,1]", "[a,[b]]", "{}", "{a:1}", "{a:{b:[1]}}", "{", "a=b"),
    *("a,b", "range(1,3)", "choice(a,b)", "sort(3,1)", "glob(*)", "interval(0,1)", "shuffle(1,2)", "int(x)", "str(1)"),
    *("${prompt}", "${nothing}", "${oc.env:NOPE}", "${oc.env:HOME}", "${oc.decode:'['}", "${", "${a", "\\${b}", "???"),
    *(LONG, "a" * 5000, "ü", "日本語", "🦊", "\u202e", "\ufeff", "\udcff", "\x00", "a\nb", "\t", "\r", "\x1b[31m"),
    *("..", "../../x", "/", "/dev/null", "/dev/full", "/proc/self/x", "/root", "~", "~nosuchuser", "-", "--", "\\"),
    *("%s", "{0}", "a b", "a:b", "#", "!!python/object:os.system", "&a", "*a", "|", ">", "@", "`", "_target_"),
)
"""What stands behind an equals sign."""
JSON = (
    *(None, True, False, 0, 1, 2, -1, 3, 7, 1.5, -0.5, 1e-30, 1e30, 1e308, 2**31, 2**40, 2**63, 10**9, 10**30),
    *(float("nan"), float("inf"), "", " ", "x", "llama", LONG, "1", "ü", "\x00", "\ud800", "../x", "/dev/null"),
    *([], [1], [0, 1], [-1], ["a"], [[]], [None], {}, {"a": 1}, {"content": 5}, {"type": "x"}, [1] * 1000),
)
"""What stands in a JSON file."""


def deep(levels: int) -> Any:
    """A list of a list of a list …"""
    nested: Any = []
    for _ in range(levels):
        nested = [nested]
    return nested


def mutated(value: Any, rng: Random) -> Any:
    """A copy of nested lists and objects in which one place is changed, removed, renamed or added."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return rng.choice(JSON)
    # those near the top as often as those of the vocabulary's ten thousand
    depth = rng.choice(sorted({len(path) for path in places}))
    path = rng.choice([path for path in places if len(path) == depth])
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    rng.choice(_CHANGES)(holder, path[-1], rng)
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _replace(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = rng.choice(JSON)


def _scale(holder: Any, key: Any, rng: Random) -> None:
    old = holder[key]
    number = isinstance(old, int | float) and not isinstance(old, bool)
    holder[key] = old * rng.choice((0, -1, 2, 3, 0.5, 10**9)) + rng.choice((0, 1, -1)) if number else rng.choice(JSON)


def _remove(holder: Any, key: Any, rng: Random) -> None:
    del holder[key]


def _add(holder: Any, key: Any, rng: Random) -> None:
    if isinstance(holder, dict):
        holder[str(rng.choice(JSON))] = copy.deepcopy(holder[key])
    else:
        holder.insert(key, rng.choice(JSON))


def _nest(holder: Any, key: Any, rng: Random) -> None:
    holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, deep(50)))


_CHANGES: tuple[Callable[[Any, Any, Random], None], ...] = (_replace, _replace, _scale, _remove, _add, _nest)
