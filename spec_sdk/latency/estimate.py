"""Estimates from a latency table: what tensor parallelism and ALSpec would do, and from which hit rate on ALSpec pays.

ALSpec on 2n devices is two groups with tensor parallelism n (ALSpec, §4.2), so that is what it is compared with: tensor
parallelism on the same 2n devices, and on the n of one group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_sdk.counted import counted
from spec_sdk.errors import UserError
from spec_sdk.latency.model import Rounding, StepTimes, break_even, speculative_us, tensor_parallel_us
from spec_sdk.latency.table import LatencyTable, show_context


@dataclass(frozen=True)
class Question:
    """What is asked of a table. None: all that the table knows, or its own number of layers."""

    hit_rates: Sequence[float]
    contexts: Sequence[int] | None = None
    devices: Sequence[int] | None = None
    layers: int | None = None
    rounding: Rounding = "none"


@dataclass(frozen=True)
class Estimate:
    """One context on one number of devices; speeds are tokens per second, None what the table does not know.

    ``step``: the parts of a step of one group. ``group_speed``: tensor parallelism on one group's ``devices / 2``;
    ``group_measured``: the same, measured from end to end. ``all_speed``: tensor parallelism on all ``devices``.
    ``alspec``: hit rate → speed. ``break_even_group``, ``break_even_all``: the hit rate above which ALSpec is faster;
    -inf at every one, inf at none.
    """

    devices: int
    context: int
    step: StepTimes | None
    group_speed: float | None
    group_measured: float | None
    all_speed: float | None
    alspec: dict[float, float]
    break_even_group: float | None
    break_even_all: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain data for estimate.json; break-evens as ``{"above": rate}``, or "always" or "never"."""
        step = self.step
        return {
            "devices": self.devices,
            "context": self.context,
            "fixed_us": step and step.fixed,
            "per_layer_us": step and step.per_layer,
            "flash_decode_us": step and step.flash_decode,
            "speculative_sender_us": step and step.sender,
            "speculative_receiver_us": step and step.receiver,
            "tokens_per_second": {
                "tensor_parallel_one_group": self.group_speed,
                "tensor_parallel_one_group_measured": self.group_measured,
                "tensor_parallel_all": self.all_speed,
                "alspec": [{"hit_rate": rate, "value": speed} for rate, speed in self.alspec.items()],
            },
            "break_even": {
                "tensor_parallel_one_group": _threshold(self.break_even_group),
                "tensor_parallel_all": _threshold(self.break_even_all),
            },
        }


def estimate(table: LatencyTable, question: Question) -> list[Estimate]:
    """All estimates, by devices and context. Raises UserError for what the table does not cover."""
    return [
        _one(table, question, devices, context)
        for devices in question.devices or default_devices(table)
        for context in question.contexts or default_contexts(table, devices)
    ]


def default_devices(table: LatencyTable) -> list[int]:
    """Every number of devices that ALSpec can be estimated for; also those where only tensor parallelism can be."""
    pairs = {2 * degree for degree, times in table.groups.items() if times.has_stages}
    alone = {degree for degree in table.groups if 2 * degree not in pairs and degree not in pairs}
    return sorted(pairs | alone)


def default_contexts(table: LatencyTable, devices: int) -> list[int]:
    """The contexts that the table lists for this number of devices. Raises UserError if it lists none."""
    for degree in (devices // 2, devices):
        if degree in table.groups and table.groups[degree].contexts:
            return list(table.groups[degree].contexts)
    _check_known(table, devices)
    raise UserError("task.contexts: name some; the table's times are the same at every context")


def _one(table: LatencyTable, question: Question, devices: int, context: int) -> Estimate:
    _check_known(table, devices)
    layers, rounding = question.layers or table.layers, question.rounding
    group = table.groups.get(devices // 2) if devices % 2 == 0 else None
    if group is None or not group.has_stages:
        all_us = _token_us(table, devices, context, layers)
        return Estimate(devices, context, None, None, None, _speed(all_us), {}, None, None)
    group_us = _token_us(table, devices // 2, context, layers)
    assert group_us is not None
    whole = table.groups.get(devices)
    knows = whole is not None and whole.covers(context) and (whole.has_stages or layers == table.layers)
    all_us = _token_us(table, devices, context, layers) if knows else None
    step = group.step(context, table.layers)
    measured = group.token if group.fixed is not None else None
    return Estimate(
        devices,
        context,
        step,
        _speed(group_us),
        _speed(measured.at(context)) if measured is not None and measured.covers(context) else None,
        _speed(all_us),
        {rate: 1e6 / speculative_us(step, layers, rate, rounding) for rate in question.hit_rates},
        break_even(step, layers, group_us, rounding),
        None if all_us is None else break_even(step, layers, all_us, rounding),
    )


def _token_us(table: LatencyTable, degree: int, context: int, layers: int) -> float | None:
    times = table.groups.get(degree)
    if times is None:
        return None
    if not times.covers(context):
        known = [show_context(c) for c in times.contexts]
        span = known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
        raise UserError(
            f"task.contexts: {show_context(context)} lies outside what table '{table.name}' knows of "
            f"{counted(degree, 'device')}: {span}"
        )
    if times.has_stages:
        return tensor_parallel_us(times.step(context, table.layers), layers)
    if layers != table.layers:
        raise UserError(
            f"task.layers: of {degree} devices, table '{table.name}' has only whole tokens of {table.layers} layers"
        )
    assert times.token is not None
    return times.token.at(context)


def _check_known(table: LatencyTable, devices: int) -> None:
    half = table.groups.get(devices // 2) if devices % 2 == 0 else None
    if devices not in table.groups and (half is None or not half.has_stages):
        known = sorted({*default_devices(table), *table.groups})
        raise UserError(
            f"task.devices: table '{table.name}' has no times for {devices}; there are: {', '.join(map(str, known))}"
        )


def _speed(token_us: float | None) -> float | None:
    return None if token_us is None else 1e6 / token_us


def _threshold(rate: float | None) -> Any:
    if rate is None:
        return None
    return {"above": rate} if math.isfinite(rate) else ("always" if rate < 0 else "never")
