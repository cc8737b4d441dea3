"""How an option is declared: its default, its meaning and its valid values, in one place.

Help, the YAML below ``conf/``, the configuration reference and the refusal of bad values are all made from it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import yaml

from spec_sdk.errors import UserError, did_you_mean

T = TypeVar("T")

LARGEST_INT64 = 2**63 - 1
_KEY = "spec_sdk.option"
_NOTHING: Mapping[Any, str] = {}


@dataclasses.dataclass(frozen=True)
class Declared:
    """What :func:`option` keeps beside a field's default."""

    doc: str = ""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    means: Mapping[Any, str] = dataclasses.field(default_factory=dict)

    def valid(self, meant: bool = False) -> str:
        """The valid values in words, "" if nothing is declared of them; ``meant``: with what a bound means."""

        def named(bound: float) -> str:
            meaning = self.means.get(bound) if meant else None
            text = "2^63 - 1" if bound == LARGEST_INT64 else as_yaml(bound)
            return f"{text} ({meaning})" if meaning else text

        if self.choices:
            return any_of([as_yaml(choice) for choice in self.choices])
        if self.minimum is not None and self.maximum is not None:
            return f"between {named(self.minimum)} and {named(self.maximum)}"
        infinite = [bound for bound in (self.above, self.below) if bound is not None and math.isinf(bound)]
        parts = [
            f"{named(self.minimum)} or more" if self.minimum is not None else "",
            f"above {named(self.above)}" if self.above is not None and self.above not in infinite else "",
            f"at most {named(self.maximum)}" if self.maximum is not None else "",
            f"below {named(self.below)}" if self.below is not None and self.below not in infinite else "",
            "finite" if infinite else "",
        ]
        null = f", or null ({self.means[None]})" if meant and None in self.means else ""
        return " and ".join(part for part in parts if part) + null

    def meaning(self) -> str:
        """The doc, and what single values mean."""
        return "; ".join([*[self.doc] * bool(self.doc), *(f"{as_yaml(v)}: {text}" for v, text in self.means.items())])

    def comment(self) -> str:
        """The meaning, with the choices listed where they do not all say what they mean: what stands beside a value."""
        if all(choice in self.means for choice in self.choices):
            return self.meaning()
        listed = dataclasses.replace(self, doc=f"{self.doc}: {self.valid()}")
        return listed.meaning()

    def check(self, path: str, value: Any) -> None:
        """Raise UserError, naming the option's ``path``, unless ``value`` is valid; of a list every item must be."""
        if value is None or (value in self.choices and type(value) in map(type, self.choices)):
            return
        if self.choices:
            texts = [choice for choice in self.choices if isinstance(choice, str)]
            if isinstance(value, str) and len(texts) == len(self.choices):
                raise UserError(f"{path}: unknown value {value!r}{did_you_mean(value, texts)}")
            raise UserError(f"{path}: {value!r} must be {self.valid()}")
        if all(bound is None for bound in (self.minimum, self.above, self.maximum, self.below)):
            return
        for item in value if isinstance(value, list | tuple) else [value]:
            if not self._holds(item):
                raise UserError(f"{path}: {item!r} must be {self.valid(meant=True)}")

    def _holds(self, value: Any) -> bool:
        # written so that NaN is refused too
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )


def option(
    default: T,
    doc: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] | Mapping[Any, str] = (),
    means: Mapping[Any, str] = _NOTHING,
) -> T:
    """A field of a plugin's ``Config``: ``width: int = option(4, "paths per level", minimum=1)``.

    ``doc`` is one line, and stands in help, YAML and reference. A number, or every number of a list, is at least
    ``minimum`` or ``above``, and at most ``maximum`` or ``below`` (infinity: any finite one); ``choices`` are the only
    values; a value of None is refused by the field's type alone. ``means`` says what single values mean, such as
    ``{0: "off"}``; choices may be such a mapping too. Values are checked when YAML and overrides are merged onto the
    dataclass; what several options must be to each other is for its ``__post_init__`` to check.
    Raises ValueError for a default that is not valid itself.
    """
    if isinstance(choices, Mapping):
        means = {**{choice: text for choice, text in choices.items() if text}, **means}
    declared = Declared(doc, minimum, above, maximum, below, tuple(choices), dict(means))
    try:
        declared.check("default", default)
    except UserError as error:
        raise ValueError(str(error)) from error
    metadata = {_KEY: declared}
    if isinstance(default, list | dict):
        made: Any = dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    else:
        made = dataclasses.field(default=default, metadata=metadata)
    return cast(T, made)


def declared_of(field: dataclasses.Field[Any]) -> Declared:
    """What :func:`option` said of a field; nothing of a plain one."""
    declared = field.metadata.get(_KEY)
    return declared if isinstance(declared, Declared) else Declared()


def as_yaml(value: Any) -> str:
    """``value`` as YAML writes it in one line, and as the command line takes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def any_of(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
