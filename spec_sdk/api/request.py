"""What an engine is asked: a prompt, and how to answer it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard, Unpack

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from spec_sdk.compiled_constraints import Given

Message = Mapping[str, str]
"""One message of a chat: ``{"role": …, "content": …}``."""
Prompt = str | Sequence[Message] | Sequence[int]
"""A text, the messages of a chat, or token ids."""


class RequestOptions(TypedDict, total=False):
    """How to answer a prompt. What is left out is as the engine's pipeline has it (``sampling.*``, ``chat`` …).

    ``max_new_tokens``: of the answer, at most. ``sampling``: all sampling parameters at once; ``temperature``,
    ``top_k``, ``top_p``, ``min_p``, ``repetition_penalty`` and ``seed`` change single ones. With a seed, or with
    ``sampling``, an answer depends on the request alone; else every request draws other random numbers. ``n``: answers
    to give, which differ in what they draw. ``stop``: texts before which the answer ends. ``stop_token_ids``: tokens
    that end it besides the model's own end tokens, which ``ignore_eos`` passes over. ``min_tokens``: of the answer,
    before any of these may end it; a constraint that leaves no other token still does. ``chat``: whether a text becomes
    the message of a user in the model's chat template; ``auto``: if the model has one. ``input_features``: what the
    encoder of an encoder–decoder model is given. ``constraint``: what the answer may consist of, such as
    ``{"name": "json_schema", "schema": {…}}``; None is anything. ``logit_bias``: token id → what is added to its
    logit. ``presence_penalty``, ``frequency_penalty``: taken from the logit of a token that stands in the answer
    already, once, and as often as it stands there. ``logprobs``: tell the log-probability of every token of the answer
    and of so many of the most probable in its place; 0 tells that of the token alone. ``prompt_logprobs``: the same of
    the prompt's tokens but the first. ``trace``: tell what every step did: its token tree, what was kept of it, and
    where each token came from. ``kept_special_tokens``: ids of special tokens that stand in the answer's text, which
    lacks others, such as those that mark a call of a tool.
    """

    max_new_tokens: int
    sampling: SamplingParams
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    n: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    chat: bool | Literal["auto"]
    input_features: torch.Tensor
    constraint: Given | None
    logit_bias: Mapping[int, float]
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    prompt_logprobs: int | None
    trace: bool
    kept_special_tokens: Collection[int]


@dataclass(frozen=True, init=False)
class Request:
    """A prompt, and how to answer it. Raises UserError for an option that does not exist."""

    prompt: Prompt
    options: RequestOptions

    def __init__(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> None:
        check_names(options)
        object.__setattr__(self, "prompt", prompt)
        object.__setattr__(self, "options", options)


def check_names(options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that does not exist, with the nearest that does."""
    known = RequestOptions.__annotations__
    if (unknown := next((name for name in options if name not in known), None)) is not None:
        raise UserError(f"{unknown}: unknown option{did_you_mean(unknown, known)}")


def requests_of(prompts: str | Request | Sequence[Any], options: RequestOptions) -> tuple[list[Request], bool]:
    """Every prompt as a request with these options, where it has none of its own; and whether it is a single one."""
    check_names(options)
    single = isinstance(prompts, str | Request) or not hasattr(prompts, "__len__") or _is_one(prompts)
    asked: Any = [prompts] if single else prompts
    return [_request(one, options) for one in asked], single


def _request(prompt: Prompt | Request, options: RequestOptions) -> Request:
    if isinstance(prompt, Request):
        merged: RequestOptions = {**options, **prompt.options}
        return Request(prompt.prompt, **merged)
    return Request(prompt, **options)


def _is_one(prompts: Sequence[Any]) -> TypeGuard[Prompt]:
    """Whether a sequence is one prompt, a chat or token ids, and not several prompts."""
    # none of these is several: they are refused as one prompt, also a number of torch or NumPy, which has no length
    if isinstance(prompts, bytes | Mapping | Set) or getattr(prompts, "ndim", 1) == 0:
        return True
    return len(prompts) > 0 and not any(isinstance(item, str | Request | Sequence) for item in prompts)
