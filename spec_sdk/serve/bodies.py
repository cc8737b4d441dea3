"""What clients send: the bodies of OpenAI's requests, and what is added to them here.

Types are strict and names must be known: a mistyped option is refused, not passed over. None is the same as leaving an
option out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from spec_sdk.api.checking import LARGEST_OFFSET, MOST_LOGPROBS
from spec_sdk.config.option import LARGEST_INT64
from spec_sdk.serve.structured import OlderNames, ResponseFormat, Strict, StructuredOutputs
from spec_sdk.serve.tools import Tool, ToolChoice

TokenId = Annotated[int, Field(ge=0, le=LARGEST_INT64)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1)]
Offset = Annotated[float, Field(ge=-LARGEST_OFFSET, le=LARGEST_OFFSET)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Strict):
    """``include_usage``: a last chunk with usage and without choices. ``include_speculation``, which is not OpenAI's:
    the token tree of every step. ``include_obfuscation`` changes nothing here.
    """

    include_usage: bool | None = None
    include_speculation: bool | None = None
    include_obfuscation: bool | None = None


class Body(OlderNames):
    """What both kinds of request have. ``top_k``, ``min_p``, ``repetition_penalty``, ``stop_token_ids``,
    ``ignore_eos``, ``min_tokens``, ``structured_outputs``, its older names and what follows it are not OpenAI's; its
    client sends them as ``extra_body``. What follows ``structured_outputs`` may be sent, but not ask for anything.
    """

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=LARGEST_INT64)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # vLLM's -1 is 0, all tokens
    top_k: Annotated[int, Field(ge=-1, le=LARGEST_INT64)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    # what lies beyond makes infinite logits of finite ones
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Offset] | None = None
    seed: Annotated[int, Field(ge=-LARGEST_INT64 - 1, le=LARGEST_INT64)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=LARGEST_INT64)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    length_penalty: Any = None
    use_beam_search: Any = None


class CompletionBody(Body):
    """``POST /v1/completions``. A prompt is a text or token ids, or a list of several. ``max_tokens`` may be 0 where
    the prompt is sent back.
    """

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=128)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=128)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=LARGEST_INT64)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    """One message; ``name`` is passed over, as chat templates do not know it.

    Clients send an answer back as they got it, with all of its fields, and unknown ones that are null.
    ``annotations``, and what OpenAI's client ``parsed`` the content to, are passed over; ``tool_calls`` and
    ``tool_call_id`` are for templates that know tools, ``reasoning_content`` for those that know thoughts; the others
    may only be empty.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: list[Any] | None = None
    parsed: Any = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class ChatBody(Body):
    """``POST /v1/chat/completions``. ``chat_template_kwargs`` is not OpenAI's. Those after it may be sent, but not ask
    for anything.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=LARGEST_INT64)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "store": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "length_penalty": (1.0,),
    "use_beam_search": (False,),
}
"""Options that are not offered, and the values by which they ask for nothing."""

NEUTRAL_IN_MESSAGES: dict[str, tuple[Any, ...]] = {
    "refusal": ("",),
    "function_call": (),
    "audio": (),
}
"""The same of a message."""
