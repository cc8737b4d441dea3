"""Messages as a model's chat template takes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.bodies import ChatBody, Message
from spec_sdk.serve.faults import Refusal
from spec_sdk.serve.reading.answer_format import call_format_of, takes_tools
from spec_sdk.serve.reading.call_formats import calls_of


def messages_of(body: ChatBody, tokenizer: Tokenizer, texts: bool = False) -> list[dict[str, Any]]:
    """The messages of a chat. ``texts``: whether the arguments of calls stay texts.

    Raises Refusal for one without content, or with what the template does not know.
    """
    return [_message(message, f"messages.{place}", tokenizer, texts) for place, message in enumerate(body.messages)]


def _message(message: Message, where: str, tokenizer: Tokenizer, texts: bool) -> dict[str, Any]:
    content = message.content
    if content is None and message.role != "assistant":
        raise Refusal(400, f"{where}.content: it is missing; only the assistant's may be", f"{where}.content")
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    made: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": text}
    if message.role == "tool":
        # some templates write any role, and name none
        if not takes_tools(tokenizer):
            _check_known("tool", f"{where}.role", tokenizer)
        told = {"name": message.name, "tool_call_id": message.tool_call_id}
        made |= {key: value for key, value in told.items() if value is not None}
    if message.tool_calls:
        if (written := _written(message.tool_calls, tokenizer)) is not None:
            made["content"] = f"{text}\n{written}" if text else written
        else:
            _check_known("tool_calls", f"{where}.tool_calls", tokenizer)
            made["tool_calls"] = [call if texts else _with_arguments(call) for call in message.tool_calls]
    if message.reasoning_content:
        made |= _thoughts(message, tokenizer)
    return made


def _written(calls: list[Any], tokenizer: Tokenizer) -> str | None:
    """Calls as the model wrote them, for templates that offer tools and have no place for calls."""
    format = None if tokenizer.template_names("tool_calls") else call_format_of(tokenizer)
    read = calls_of([call.get("function") if isinstance(call, Mapping) else None for call in calls])
    return None if format is None or read is None else format.written(read)


def _thoughts(message: Message, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a message was thought with, by the name that the template has for it: most pass earlier thoughts over."""
    if tokenizer.template_names("reasoning_content"):
        return {"reasoning_content": message.reasoning_content}
    if not tokenizer.template_names("thinking"):
        return {}
    # gpt-oss's template refuses a call with both thoughts and content
    return {"thinking": message.reasoning_content, **({"content": ""} if message.tool_calls else {})}


def _check_known(name: str, where: str, tokenizer: Tokenizer) -> None:
    if not tokenizer.template_names(name):
        message = f"{where}: the model's chat template has no place for {name}; leave it out"
        raise Refusal(400, message, where, "unsupported_parameter")


def _with_arguments(call: Any) -> Any:
    """A call whose arguments are no longer a JSON text: templates write them as JSON themselves."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    with contextlib.suppress(ValueError, RecursionError):
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    return call
