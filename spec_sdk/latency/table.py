"""A table of latencies: YAML that people can read, copy and edit, checked key by key.

docs/latency_estimator.md describes the schema. Inside, every time is microseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded, read_text
from spec_sdk.latency.model import StepTimes

OPTION = "task.latencies"
UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
"""Unit → microseconds."""
TABLE_KEYS = ("title", "source", "layers", "unit", "speculation_size", "notes", "tensor_parallel")
TIME_KEYS = (
    "fixed",
    "per_layer",
    "pre_attention",
    "post_attention",
    "flash_decode",
    "speculative_sender",
    "speculative_receiver",
    "link",
)
DEVICE_KEYS = (*TIME_KEYS, "tokens_per_second")
KILO = 1024


@dataclass(frozen=True)
class Curve:
    """A value by context length: constant, or known at some contexts, linear between them, unknown beyond them.

    ``points``: (context, value), contexts increasing; a constant is one point at context 0.
    """

    points: tuple[tuple[int, float], ...]

    @classmethod
    def constant(cls, value: float) -> Curve:
        """The same value at every context."""
        return cls(((0, value),))

    @property
    def is_constant(self) -> bool:
        return self.points[0][0] == 0

    @property
    def contexts(self) -> tuple[int, ...]:
        """Where it is known without interpolation; nothing for a constant."""
        return () if self.is_constant else tuple(context for context, _ in self.points)

    def covers(self, context: int) -> bool:
        """Whether the value at ``context`` is known."""
        return self.is_constant or self.points[0][0] <= context <= self.points[-1][0]

    def at(self, context: int) -> float:
        """The value at ``context``. Raises ValueError if it is not covered."""
        if self.is_constant:
            return self.points[0][1]
        if not self.covers(context):
            raise ValueError(f"{context} lies outside {self.contexts}")
        (left, low), (right, high) = self.points[0], self.points[0]
        for right, high in self.points:
            if right >= context:
                break
            left, low = right, high
        return high if right == context else low + (high - low) * (context - left) / (right - left)


@dataclass(frozen=True)
class DeviceTimes:
    """What a table knows of one degree of tensor parallelism. Absent parts are None.

    ``token``: a whole token, measured from end to end. Without ``fixed``, that is what ``token`` leaves after the
    layers. Without ``sender``, SFD_S is taken as FD (the paper measures almost no overhead, App. D); without
    ``receiver``, SFD_R is ``link`` alone. The paper's Table 3 follows from both.
    """

    fixed: Curve | None
    per_layer: Curve | None
    flash_decode: Curve | None
    sender: Curve | None
    receiver: Curve | None
    link: Curve
    token: Curve | None

    @property
    def has_stages(self) -> bool:
        """Whether the parts of a step are known, and so what speculation would do."""
        return self.per_layer is not None

    @property
    def _curves(self) -> list[Curve]:
        needed = (self.per_layer, self.flash_decode, self.sender, self.receiver, self.link, self.fixed)
        curves = [curve for curve in needed if curve is not None] if self.has_stages else []
        return [*curves, *([self.token] if self.token is not None and self.fixed is None else [])]

    def covers(self, context: int) -> bool:
        """Whether a token's time at ``context`` follows from the table."""
        return all(curve.covers(context) for curve in self._curves)

    @property
    def contexts(self) -> tuple[int, ...]:
        """The contexts of which all is known without interpolation (or with, if none is)."""
        listed = sorted({context for curve in self._curves for context in curve.contexts})
        return tuple(context for context in listed if self.covers(context))

    def step(self, context: int, layers: int) -> StepTimes:
        """The parts of a step; ``layers`` are the table's, which a derived fixed time leaves out. It has stages."""
        assert self.per_layer is not None and self.flash_decode is not None
        per_layer, flash_decode = self.per_layer.at(context), self.flash_decode.at(context)
        if self.fixed is not None:
            fixed = self.fixed.at(context)
        else:
            assert self.token is not None
            fixed = self.token.at(context) - layers * (per_layer + flash_decode)
        sender = flash_decode if self.sender is None else self.sender.at(context)
        receiver = 0.0 if self.receiver is None else self.receiver.at(context)
        return StepTimes(fixed, per_layer, flash_decode, sender, receiver + self.link.at(context))


@dataclass(frozen=True)
class LatencyTable:
    """Times of one model on one kind of machine. ``groups``: degree of tensor parallelism → times.

    ``speculation_size``: S, the tokens from each end of the context that a prediction reads, if times depend on it.
    """

    name: str
    title: str
    source: str
    layers: int
    speculation_size: int | None
    notes: tuple[str, ...]
    groups: Mapping[int, DeviceTimes]

    def assumptions(self) -> list[str]:
        """What estimates take for granted because the table does not have it."""
        stages = [times for times in self.groups.values() if times.has_stages]
        said = []
        if any(times.fixed is None for times in stages):
            said.append("fixed time: not in the table; it is what the measured token leaves after the layers")
        if any(times.sender is None for times in stages):
            said.append("SFD_S: not in the table, taken as flash decode's own time")
        if any(times.receiver is None for times in stages):
            said.append("SFD_R: not in the table, taken as 0")
        return said


def shipped() -> list[str]:
    """Names of the tables that come with spec-sdk."""
    return sorted(f.name.removesuffix(".yaml") for f in files(__package__).joinpath("tables").iterdir())


def load_table(reference: str) -> LatencyTable:
    """The table of that name, or of the file at that path. Raises UserError for whatever is wrong with it."""
    if reference in shipped():
        text = files(__package__).joinpath("tables", f"{reference}.yaml").read_text(encoding="utf-8")
        return parse_table(text, reference, f"{reference}.yaml")
    path = expanded(reference, OPTION)
    if not path.suffix and path.name == reference and not path.exists():
        known = [*shipped(), "measure"]
        raise UserError(
            f"{OPTION}: unknown table '{reference}'{did_you_mean(reference, known)} (or the path of a file)"
        )
    return parse_table(read_text(path, f"{OPTION}: {reference}"), Path(reference).stem, reference)


def parse_table(text: str, name: str, where: str) -> LatencyTable:
    """A table from YAML. ``where`` is what messages call the file. Raises UserError."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{where}{line}: not YAML: {getattr(error, 'problem', None) or 'unreadable'}") from error
    keys = _mapping(content, where, TABLE_KEYS)
    unit = _required(keys, "unit", where)
    if unit not in UNITS:
        raise UserError(f"{where}: unit: {unit!r} is no unit{did_you_mean(str(unit), UNITS)}")
    layers = _whole(_required(keys, "layers", where), f"{where}: layers")
    size = keys.get("speculation_size")
    notes = keys.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise UserError(f"{where}: notes: {notes!r} is not a list of texts")
    degrees = _required(keys, "tensor_parallel", where)
    if not isinstance(degrees, Mapping) or not degrees:
        raise UserError(f"{where}: tensor_parallel: it must map numbers of devices to their times")
    groups = {}
    for degree, times in degrees.items():
        path = f"{where}: tensor_parallel.{degree}"
        groups[_whole(degree, path)] = _device_times(times, path, UNITS[unit], layers)
    return LatencyTable(
        name=name,
        title=_text(keys.get("title", name), f"{where}: title"),
        source=_text(keys.get("source", where), f"{where}: source"),
        layers=layers,
        speculation_size=None if size is None else _whole(size, f"{where}: speculation_size"),
        notes=tuple(notes),
        groups=dict(sorted(groups.items())),
    )


def _device_times(node: Any, where: str, scale: float, layers: int) -> DeviceTimes:
    keys = _mapping(node, where, DEVICE_KEYS)
    curves = {key: _curve(keys[key], f"{where}.{key}", scale) for key in TIME_KEYS if key in keys}
    token = _speeds(keys["tokens_per_second"], f"{where}.tokens_per_second") if "tokens_per_second" in keys else None
    halves = [key for key in ("pre_attention", "post_attention") if key in curves]
    if "per_layer" in curves and halves:
        raise UserError(f"{where}.per_layer: {halves[0]} is given too; give per_layer, or pre_ and post_attention")
    per_layer = curves.get("per_layer")
    if len(halves) == 2:
        per_layer = _sum(curves["pre_attention"], curves["post_attention"], where)
    stages = {"per_layer, or pre_attention and post_attention": per_layer, "flash_decode": curves.get("flash_decode")}
    missing = [name for name, curve in stages.items() if curve is None]
    if curves and missing:
        raise UserError(f"{where}: {missing[0]} is missing")
    if token is None and "fixed" not in curves:
        raise UserError(f"{where}: fixed is missing (or tokens_per_second, which it can be derived from)")
    times = DeviceTimes(
        fixed=curves.get("fixed"),
        per_layer=per_layer,
        flash_decode=curves.get("flash_decode"),
        sender=curves.get("speculative_sender"),
        receiver=curves.get("speculative_receiver"),
        link=curves.get("link", Curve.constant(0.0)),
        token=token,
    )
    if not times.contexts and times.has_stages and not times.covers(1):
        raise UserError(f"{where}: no context is covered by all its times")
    for context in (times.contexts or (1,)) if times.has_stages else ():
        step, at = times.step(context, layers), f"at {show_context(context)} " if times.contexts else ""
        if not step.fixed and not step.per_layer:
            raise UserError(f"{where}: {at}fixed and the layers without attention take 0; they must take more")
        if step.fixed < 0:
            raise UserError(f"{where}.tokens_per_second: {at}a token takes less time than its {layers} layers")
    return times


def parse_context(value: Any, where: str) -> int:
    """A context length: a whole number, or one with K for 1024 (``32K``). Raises UserError."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}[kK]?", value):
        value = int(value[:-1]) * KILO if value[-1] in "kK" else int(value)
    return _whole(value, where, "a context length of 1 or more, such as 4096 or 32K")


def show_context(context: int) -> str:
    """``32K`` for 32768; other numbers as they are."""
    return f"{context // KILO}K" if context % KILO == 0 else str(context)


def _curve(node: Any, where: str, scale: float) -> Curve:
    if isinstance(node, list):
        return Curve.constant(scale * sum(_op_time(op, f"{where}[{i}]") for i, op in enumerate(node)))
    if isinstance(node, Mapping):
        return Curve(_points(node, where, lambda value, path: scale * _time(value, path)))
    return Curve.constant(scale * _time(node, where))


def _speeds(node: Any, where: str) -> Curve:
    """Tokens per second, as microseconds per token."""

    def token_us(value: Any, path: str) -> float:
        speed = _time(value, path)
        if speed == 0:
            raise UserError(f"{path}: 0 must be more than 0")
        return 1e6 / speed

    return Curve(_points(node, where, token_us)) if isinstance(node, Mapping) else Curve.constant(token_us(node, where))


def _points(node: Mapping[Any, Any], where: str, read: Any) -> tuple[tuple[int, float], ...]:
    if not node:
        raise UserError(f"{where}: it has no contexts")
    points = {
        parse_context(context, f"{where}.{context}"): read(v, f"{where}.{context}") for context, v in node.items()
    }
    return tuple(sorted(points.items()))


def _op_time(node: Any, where: str) -> float:
    if not isinstance(node, Mapping) or len(node) != 1:
        raise UserError(f"{where}: {node!r} is not one op and its time, as in '- Matmul: 109174'")
    [(name, value)] = node.items()
    return _time(value, f"{where}.{name}")


def _sum(first: Curve, second: Curve, where: str) -> Curve:
    contexts = sorted({*first.contexts, *second.contexts})
    if not contexts:
        return Curve.constant(first.at(0) + second.at(0))
    covered = [context for context in contexts if first.covers(context) and second.covers(context)]
    if not covered:
        raise UserError(f"{where}: no context is covered by both pre_attention and post_attention")
    return Curve(tuple((context, first.at(context) + second.at(context)) for context in covered))


def _mapping(node: Any, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise UserError(f"{where}: {str(node)[:40]!r} is not a group of keys; there are: {', '.join(known)}")
    for key in node:
        if key not in known:
            raise UserError(f"{where}: unknown key '{key}'{did_you_mean(str(key), known)}")
    return node


def _required(node: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in node:
        raise UserError(f"{where}: {key} is missing")
    return node[key]


def _time(value: Any, where: str) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d*)?[eE][+-]?\d+", value):
        value = float(value)  # to YAML 1.1, 1e3 is a text
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(f"{where}: {value!r} is not a number of 0 or more")
    return float(value)


def _whole(value: Any, where: str, what: str = "a whole number of 1 or more") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{where}: {value!r} is not {what}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {value!r} is not a text")
    return value
