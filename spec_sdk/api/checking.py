"""From a request to what the token engine serves: every value checked as the command line checks it.

Legend: P prompt tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from spec_sdk.api.request import Prompt, Request, RequestOptions
from spec_sdk.compiled_constraints import Given
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.ops.logit_offsets import LogitOffsets
from spec_sdk.prompts import check_length, check_text, encode, encode_messages
from spec_sdk.sampling_params import SamplingParams
from spec_sdk.settings import RunSettings, Settings, checked_run, checked_sampling

SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingParams))
T = TypeVar("T")

RUN = ("max_new_tokens", "ignore_eos", "chat")

LARGEST_OFFSET = 100
"""Of a bias or a penalty: it makes a token certain, or rules it out, and cannot overflow any dtype."""
MOST_LOGPROBS = 20
"""Alternatives of a token that can be told of; the OpenAI API tells of no more."""


@dataclass(frozen=True)
class Plan:
    """How a request is answered, checked; its constraint is not compiled yet. ``seeded``: whether the request brought a
    seed of its own.
    """

    max_new_tokens: int
    sampling: SamplingParams
    seeded: bool
    n: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    min_tokens: int
    chat: bool | None
    input_features: torch.Tensor | None
    constraint: Given | None
    offsets: LogitOffsets | None
    logprobs: int | None
    prompt_logprobs: int | None
    trace: bool
    kept_special_tokens: frozenset[int]


def plan_of(options: RequestOptions, settings: Settings) -> Plan:
    """The options of a request over those of its pipeline. Raises UserError for a value that is not valid."""
    given: Mapping[str, Any] = {name: _of_python(value) for name, value in options.items()}
    base = given.get("sampling", settings.sampling)
    if not isinstance(base, SamplingParams):
        raise UserError(f"sampling: {base!r} is no SamplingParams")
    values = {name: _of_python(getattr(base, name)) for name in SAMPLING}
    sampling = _once(
        _sampling_of, checked_sampling, {**values, **{name: given[name] for name in SAMPLING if name in given}}
    )
    defaults = {
        "max_new_tokens": settings.max_new_tokens,
        "ignore_eos": settings.ignore_eos,
        "chat": "auto" if settings.chat is None else settings.chat,
    }
    run = _once(_run_of, checked_run, {**defaults, **{name: given[name] for name in RUN if name in given}})
    n = given.get("n", 1)
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UserError(f"n: {n!r} must be 1 or more")
    return Plan(
        max_new_tokens=run.max_new_tokens,
        sampling=sampling,
        seeded="seed" in given or "sampling" in given,
        n=n,
        stop=_stop_strings(given.get("stop", ())),
        stop_token_ids=tuple(_token_ids(given.get("stop_token_ids", ()), "stop_token_ids")),
        ignore_eos=run.ignore_eos,
        min_tokens=_min_tokens(given.get("min_tokens", 0), run.max_new_tokens),
        chat=None if run.chat == "auto" else run.chat,
        input_features=given.get("input_features"),
        constraint=given.get("constraint", settings.constraint),
        offsets=_offsets(given),
        logprobs=_logprobs(given, "logprobs"),
        prompt_logprobs=_logprobs(given, "prompt_logprobs"),
        trace=_trace(given.get("trace", False)),
        kept_special_tokens=frozenset(_token_ids(given.get("kept_special_tokens", ()), "kept_special_tokens")),
    )


def _of_python(value: Any) -> Any:
    """A number of NumPy's, such as a sweep's, as one of Python's."""
    return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value


# most requests ask for what earlier ones did, and a check takes longer than a pass of a small model.
# ``typed``: True is no whole number, though it equals 1
@functools.lru_cache(maxsize=1024, typed=True)
def _sampling_of(**values: Any) -> SamplingParams:
    return checked_sampling(values)


@functools.lru_cache(maxsize=1024, typed=True)
def _run_of(**values: Any) -> RunSettings:
    return checked_run(values)


def _once(remembered: Callable[..., T], check: Callable[[Mapping[str, Any]], T], values: Mapping[str, Any]) -> T:
    """``check(values)``, remembered. What no dictionary can hold is checked, and refused there."""
    try:
        hash(tuple(values.values()))
    except TypeError:
        return check(values)
    return remembered(**values)


def tokens_of(request: Request, plan: Plan, tokenizer: Tokenizer, context: int, index: int, prompts: int) -> list[int]:
    """The token ids [P] of a request's prompt, number ``index`` of ``prompts``.

    Raises UserError for a prompt that is none, or does not fit the context together with its answer.
    """
    tokens = _encoded(request.prompt, plan.chat, tokenizer)
    check_length(len(tokens), plan.max_new_tokens, context, index, prompts)
    return tokens


def _encoded(prompt: Prompt, chat: bool | None, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, str):
        check_text(prompt)
        return encode(tokenizer, prompt, chat)
    if isinstance(prompt, Mapping):
        raise UserError("prompt: it is one message; a chat is a list of messages, [{'role': 'user', 'content': …}]")
    # bytes would be taken for token ids
    items: list[Any] | None = None if isinstance(prompt, bytes | Set) else _listed(prompt)
    if items is None:
        raise UserError(f"prompt: {prompt!r} is no text, chat or list of token ids")
    if items and isinstance(items[0], str):
        raise UserError("prompt: several texts are given as a list")
    if items and isinstance(items[0], Mapping):
        return encode_messages(tokenizer, items, chat)
    return _token_ids(items, "prompt")


def _listed(values: object) -> list[Any] | None:
    """What can be gone through as a list, and None for what cannot: a tensor without dimensions only looks as if."""
    try:
        return list(cast(Iterable[Any], values))
    except TypeError:
        return None


def _token_ids(values: object, name: str) -> list[int]:
    """Whole numbers of any kind as ints. Whether the model has such tokens is the token engine's business."""
    listed = _listed(values)
    if listed is None:
        raise UserError(f"{name}: {values!r} is no list of token ids")
    ids = []
    for value in listed:
        try:
            if isinstance(value, bool):
                raise TypeError
            ids.append(operator.index(value))
        except TypeError:
            raise UserError(f"{name}: {value!r} is no token id") from None
    return ids


def _stop_strings(given: object) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else given
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) and stop for stop in stops):
        raise UserError(f"stop: {given!r} must be a text, or a list of texts, none of them empty")
    return tuple(stops)


def _min_tokens(given: object, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UserError(f"min_tokens: {given!r} must be 0 or more")
    if given > most:
        raise UserError(f"min_tokens: {given} is more than max_new_tokens={most}")
    return given


def _offsets(given: Mapping[str, Any]) -> LogitOffsets | None:
    bias = given.get("logit_bias", {})
    if not isinstance(bias, Mapping):
        raise UserError(f"logit_bias: {bias!r} must be a mapping of token ids to numbers")
    tokens = _token_ids(bias, "logit_bias")
    values = [_finite(value, f"logit_bias[{token}]") for token, value in zip(tokens, bias.values(), strict=True)]
    presence, frequency = (_finite(given.get(name, 0.0), name) for name in ("presence_penalty", "frequency_penalty"))
    if not any((*values, presence, frequency)):
        return None
    return LogitOffsets(dict(zip(tokens, values, strict=True)), presence, frequency)


def _finite(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST_OFFSET:
        raise UserError(f"{name}: {value!r} must be a number between -{LARGEST_OFFSET} and {LARGEST_OFFSET}")
    return float(value)


def _logprobs(given: Mapping[str, Any], name: str) -> int | None:
    count = given.get(name)
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_LOGPROBS):
        raise UserError(f"{name}: {count!r} must be a whole number between 0 and {MOST_LOGPROBS}, or None")
    return count


def _trace(given: object) -> bool:
    if not isinstance(given, bool):
        raise UserError(f"trace: {given!r} must be true or false")
    return given
