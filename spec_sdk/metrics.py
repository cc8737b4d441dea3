"""What is counted, computed from events and from nothing else. The names are an interface: metrics.json has them.

``tokens_per_second`` is new tokens over decode time; prefill is reported apart. ``acceptance_rate`` is accepted over
drafted depth, None if nothing was drafted. ``mean_accepted_tokens`` (MAT) is new tokens per target pass, bonus token
included: 1.0 is plain decoding. ``host_reads_per_step``: how often a step waited for values of the device.
``constraint``, only where answers were constrained: over so many ``steps`` the host's ``seconds`` for masks, drafted
nodes that were ``pruned``, forced tokens that were ``taken`` at once, those that were ``added`` behind drafts, and of
these ``added_accepted``.
``parts``, only of a drafter that tells of its parts: of each the nodes that it ``proposed``, those ``accepted``, and
the ``accepted_share``.
``attention.hit_rate`` is the share of attention predictions that were accepted; layers that predicted nothing in a
cycle (null) are left out, and a rate of nothing is None. ``mean_error`` and
``max_error`` are of the relative error per layer and pass, each the pass's worst row; ``error_bounds`` is explained in
:mod:`spec_sdk.error_bounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from spec_sdk.error_bounds import error_bounds
from spec_sdk.events import Event

SCHEMA_VERSION = 1
STAGES = ("draft", "verify", "recover")


def request_metrics(events: Sequence[Event]) -> dict[str, Any]:
    """The record of one prompt, from its events. (metrics.json has also ``text``, which a tokenizer makes of it.)

    A request without an end event was cut off: its finish_reason is ``interrupted``.
    """
    first = {event["event"]: event for event in reversed(events)}
    cycles = [event for event in events if event["event"] == "cycle"]
    tokens = [token for cycle in cycles for token in cycle["tokens"]]
    return {
        "prompt_tokens": first["request_start"]["prompt_tokens"],
        "new_tokens": len(tokens),
        "token_ids": tokens,
        "finish_reason": first.get("request_end", {}).get("finish_reason", "interrupted"),
        "prefill_s": first.get("prefill", {}).get("seconds"),
        **_counts(cycles, len(tokens)),
    }


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """The same counts over all prompts together, and ``tokens_per_second``."""
    events = list(events)
    cycles = [event for event in events if event["event"] == "cycle"]
    tokens = sum(len(cycle["tokens"]) for cycle in cycles)
    counts = _counts(cycles, tokens)
    return {
        "prompts": sum(event["event"] == "request_start" for event in events),
        "prompt_tokens": sum(e["prompt_tokens"] for e in events if e["event"] == "request_start"),
        "new_tokens": tokens,
        "prefill_s": sum(event["seconds"] for event in events if event["event"] == "prefill"),
        "tokens_per_second": ratio(tokens, counts["decode_s"]),
        **counts,
    }


def comparison(summary: Mapping[str, Any], vanilla: Mapping[str, Any]) -> dict[str, Any]:
    """A run beside plain decoding of the same prompts: ``vanilla``'s summary, and the ratio of tokens per second."""
    ours, theirs = summary["tokens_per_second"], vanilla["tokens_per_second"]
    return {"vanilla": dict(vanilla), "speedup": speedup(ours, theirs)}


def speedup(ours: float | None, theirs: float | None) -> float | None:
    """Tokens per second over plain decoding's; None if either is not known, or there is nothing to divide by."""
    return None if ours is None or not theirs else ours / theirs


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``, None if there is no whole."""
    return part / whole if whole else None


def _counts(cycles: Sequence[Event], tokens: int) -> dict[str, Any]:
    stages = {stage: sum(cycle[f"{stage}_s"] for cycle in cycles) for stage in STAGES}
    drafted = sum(cycle["drafted"] for cycle in cycles)
    accepted = sum(cycle["accepted"] for cycle in cycles)
    return {
        "decode_s": sum(stages.values()),
        "steps": len(cycles),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": ratio(accepted, drafted),
        "mean_accepted_tokens": ratio(tokens, len(cycles)),
        "stage_s": stages,
        "host_reads_per_step": ratio(sum(cycle["host_reads"] for cycle in cycles), len(cycles)),
        **_parts([cycle["parts"] for cycle in cycles if "parts" in cycle]),
        **_constraint([cycle["constraint"] for cycle in cycles if "constraint" in cycle]),
        "attention": _attention([cycle["attention"] for cycle in cycles if cycle["attention"] is not None]),
    }


def _parts(cycles: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Any]:
    """The cycles' ``parts`` fields, summed up; no key at all where a drafter has none."""
    sums: dict[str, list[int]] = {}
    for name, counts in chain.from_iterable(cycle.items() for cycle in cycles):
        sums[name] = [before + count for before, count in zip(sums.get(name, (0, 0)), counts, strict=True)]
    told = {
        name: {"proposed": proposed, "accepted": accepted, "accepted_share": ratio(accepted, proposed)}
        for name, (proposed, accepted) in sorted(sums.items())
    }
    return {"parts": told} if told else {}


def _constraint(cycles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The cycles' ``constraint`` fields, summed up; no key at all where no answer was constrained."""
    if not cycles:
        return {}
    keys = ("seconds", "pruned", "taken", "added", "added_accepted")
    return {"constraint": {"steps": len(cycles)} | {key: sum(cycle[key] for cycle in cycles) for key in keys}}


def _attention(passes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The passes' ``attention`` fields → rates, errors and bounds; None if no pass speculated on attention at all."""
    if not passes:
        return None
    hits, errors = (_per_layer([attention[key] for attention in passes]) for key in ("hit", "error"))
    every_hit, every_error = (list(chain.from_iterable(layers)) for layers in (hits, errors))
    return {
        "predictions": len(every_hit),
        "hits": sum(every_hit),
        "hit_rate": ratio(sum(every_hit), len(every_hit)),
        "hit_rate_per_layer": [ratio(sum(layer), len(layer)) for layer in hits],
        "mean_error": ratio(sum(every_error), len(every_error)),
        "max_error": max(every_error, default=None),
        "mean_error_per_layer": [ratio(sum(layer), len(layer)) for layer in errors],
        "max_error_per_layer": [max(layer, default=None) for layer in errors],
        "error_bounds": error_bounds(passes),
    }


def _per_layer(values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """``values[pass][layer]`` → per layer those that are not null."""
    return [[value for value in layer if value is not None] for layer in zip(*values, strict=True)]
