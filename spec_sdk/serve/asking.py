"""From a body to what the engine is asked. Everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from spec_sdk.api.engine import Engine
from spec_sdk.api.request import RequestOptions
from spec_sdk.config.option import LARGEST_INT64
from spec_sdk.errors import UserError
from spec_sdk.model.chat_template import RefusedMessages
from spec_sdk.prompt_lines import check_unicode
from spec_sdk.serve.bodies import NEUTRAL, NEUTRAL_IN_MESSAGES, Body, ChatBody, CompletionBody, Message
from spec_sdk.serve.chat_prompts import chat_prompt_of
from spec_sdk.serve.echo import Echo
from spec_sdk.serve.faults import Refusal
from spec_sdk.serve.prompt_size import check_size
from spec_sdk.serve.reading.answer_format import AnswerFormat
from spec_sdk.serve.structured import StructuredOutputs, asked_as, constraint_of, outputs_of, refused_structure

PLAIN = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
)
"""Options that the engine has under the same name."""


@dataclass(frozen=True)
class Asked:
    """A request that the engine takes: each prompt's token ids and options, ``n`` answers for each.

    ``logprobs``: whether a client is told of them, which is not so if only the options are there. ``structured``:
    the option that asks for the answer's structure. ``echoes``: the prompt of each answer, where they are sent back.
    ``prompts_only``: whether answers are to have no token. ``format``: how answers are read.
    """

    prompts: list[list[int]]
    options: list[RequestOptions]
    n: int
    logprobs: bool
    structured: str
    echoes: list[Echo]
    prompts_only: bool
    format: AnswerFormat = AnswerFormat()

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.n

    @property
    def several(self) -> str:
        """The option that asks for more than one answer."""
        return "n" if self.n > 1 else "prompt"

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def asked_of(body: Body, engine: Engine, max_new_tokens: int, reasoning: bool = True) -> Asked:
    """A body as the engine takes it. ``max_new_tokens``: for those who do not say; ``reasoning``: whether a chat's
    thoughts are told apart. Raises Refusal with status 400.
    """
    _refuse_what_is_not_offered(body)
    outputs, structure = outputs_of(body, body.structured_outputs), asked_as(body, body.response_format)
    try:
        format, forced = AnswerFormat(), None
        if isinstance(body, ChatBody):
            chat = chat_prompt_of(body, engine, reasoning)
            prompts, format, forced = [chat.tokens], chat.format, chat.forced
        else:
            prompts = _prompt_tokens(cast(CompletionBody, body), engine)
        shared = _options(body, outputs)
        if forced is not None:
            shared["constraint"], structure = forced, "tools"
        if kept := engine.tokenizer.special_ids(format.marks):
            shared["kept_special_tokens"] = kept
        given = cast(dict[str, Any], shared).pop("max_new_tokens", None)
        options: list[RequestOptions] = []
        for tokens in prompts:
            room = engine.context - len(tokens)
            if given is None and room < 1:
                its = f"its {len(tokens)} tokens leave no room for an answer in the context of {engine.context}"
                option = "messages" if isinstance(body, ChatBody) else "prompt"
                raise Refusal(400, f"{option}: {its}", option, "context_length_exceeded")
            length = min(max_new_tokens, room) if given is None else given
            options.append({**shared, "max_new_tokens": length})
            engine.check(tokens, **options[-1])
    except RefusedMessages as error:
        raise Refusal(400, f"messages: the model's chat template refuses them: {error.reason}", "messages") from error
    except UserError as error:
        refusal = refused_structure(str(error), structure)
        raise refusal or refused(error, "messages" if isinstance(body, ChatBody) else "prompt") from error
    n, logprobs = body.n or 1, "logprobs" in shared
    echoes = _echoes(body, prompts, engine) if isinstance(body, CompletionBody) and body.echo else []
    return Asked(
        prompts,
        options,
        n,
        logprobs,
        structure,
        [echo for echo in echoes for _ in range(n)],
        body.max_tokens == 0,
        format,
    )


def refused(error: UserError, prompt: str) -> Refusal:
    """What the engine does not take. The option stands before the colon, by the name that it has here; that of the
    prompt is ``prompt``.
    """
    option, colon, rest = str(error).replace("max_new_tokens", "max_tokens").partition(":")
    option = option.removeprefix("sampling.")
    if not colon or not option.isidentifier():
        return Refusal(400, str(error))
    code = "context_length_exceeded" if option == "prompt" and "context" in rest else None
    option = prompt if option == "prompt" else option
    return Refusal(400, f"{option}:{rest}", option, code)


def _refuse_what_is_not_offered(body: Body) -> None:
    _refuse_unless_neutral(body, NEUTRAL, "")
    if isinstance(body, ChatBody):
        for place, message in enumerate(body.messages):
            _refuse_unless_neutral(message, NEUTRAL_IN_MESSAGES, f"messages.{place}.")
    if isinstance(body, CompletionBody) and body.best_of not in (None, body.n or 1):
        raise Refusal(400, "best_of: it must be n, or be left out", "best_of", "unsupported_parameter")
    if isinstance(body, CompletionBody) and body.max_tokens == 0 and not body.echo:
        raise Refusal(400, "max_tokens: 0 needs echo=true", "max_tokens")
    if isinstance(body, ChatBody) and body.top_logprobs is not None and not body.logprobs:
        raise Refusal(400, "top_logprobs: it needs logprobs=true", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise Refusal(400, "stream_options: it needs stream=true", "stream_options")


def _refuse_unless_neutral(given: Body | Message, neutral: Mapping[str, tuple[Any, ...]], before: str) -> None:
    for name, values in neutral.items():
        value = getattr(given, name, None)
        if value is not None and value not in values:
            where = f"{before}{name}"
            raise Refusal(400, f"{where}: it is not supported; leave it out", where, "unsupported_parameter")


def _options(body: Body, outputs: StructuredOutputs | None) -> RequestOptions:
    given: dict[str, Any] = {name: value for name in PLAIN if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)
    if (constraint := constraint_of(body.response_format, outputs)) is not None:
        given["constraint"] = constraint
    if body.seed is not None:
        given["seed"] = body.seed & LARGEST_INT64
    if body.logit_bias:
        given["logit_bias"] = _bias(body.logit_bias)
    if (length := _max_tokens(body)) is not None:
        # the engine answers with one token at least
        given["max_new_tokens"] = max(length, 1)
    if body.stream_options is not None and body.stream_options.include_speculation:
        given["trace"] = True
    if isinstance(body, ChatBody):
        if body.logprobs:
            given["logprobs"] = body.top_logprobs or 0
    elif (logprobs := cast(CompletionBody, body).logprobs) is not None:
        given["logprobs"] = logprobs
        if cast(CompletionBody, body).echo:
            given["prompt_logprobs"] = logprobs
    return cast(RequestOptions, given)


def _max_tokens(body: Body) -> int | None:
    """``max_tokens`` is the older name of a chat's ``max_completion_tokens``."""
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    if newer is not None and body.max_tokens not in (None, newer):
        raise Refusal(400, "max_tokens: max_completion_tokens is given too; give one of the two", "max_tokens")
    return body.max_tokens if newer is None else newer


def _bias(given: dict[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for name, value in given.items():
        # int() takes signs, spaces and underscores too
        if not (name.isascii() and name.isdigit() and len(name) < 20):
            raise Refusal(400, f"logit_bias: {name[:40]!r} is no token id", "logit_bias")
        bias[int(name)] = value
    return bias


def _prompt_tokens(body: CompletionBody, engine: Engine) -> list[list[int]]:
    given: Any = body.prompt
    several = isinstance(given, list) and not isinstance(given[0], int)
    prompts: Sequence[Any] = given if several else [given]
    return [_text_tokens(one, engine) if isinstance(one, str) else list(one) for one in prompts]


def _echoes(body: CompletionBody, prompts: Sequence[list[int]], engine: Engine) -> list[Echo]:
    given: Any = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = given if isinstance(given[0], str) else map(engine.tokenizer.decode, prompts)
    return [Echo(text, tokens) for text, tokens in zip(texts, prompts, strict=True)]


def _text_tokens(text: str, engine: Engine) -> list[int]:
    if not text:
        raise Refusal(400, "prompt: it is empty", "prompt")
    check_unicode(text, "prompt")
    check_size(text, engine, "prompt")
    return engine.tokenizer.encode(text)
