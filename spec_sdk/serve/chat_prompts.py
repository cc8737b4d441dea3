"""A chat as the engine is asked: its prompt's tokens, and how the answers are to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec_sdk.api.engine import Engine
from spec_sdk.model.chat_template import RefusedMessages
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.prompt_lines import check_unicode
from spec_sdk.serve.bodies import ChatBody
from spec_sdk.serve.chats import messages_of
from spec_sdk.serve.faults import Refusal
from spec_sdk.serve.prompt_size import check_size
from spec_sdk.serve.reading.answer_format import (
    AnswerFormat,
    call_format_of,
    has_channels,
    takes_tools,
    thought_tags_of,
)
from spec_sdk.serve.reading.call_formats import CallFormat
from spec_sdk.serve.reading.thoughts import Begin, begin_behind
from spec_sdk.serve.structured import asked_as, constraint_of, outputs_of
from spec_sdk.serve.template_variables import variables_of
from spec_sdk.serve.tools import Tool, chosen, for_template, forced_call, is_forced, schemas_of


@dataclass(frozen=True)
class ChatPrompt:
    """A chat's prompt. ``forced``: the constraint by which an answer is a call, if it must be one."""

    tokens: list[int]
    format: AnswerFormat
    forced: Mapping[str, Any] | None = None


def chat_prompt_of(body: ChatBody, engine: Engine, reasoning: bool) -> ChatPrompt:
    """``reasoning``: whether thoughts are told apart from content.

    Raises Refusal, RefusedMessages where the template refuses the messages, and UserError for a text that is none.
    """
    tokenizer = engine.tokenizer
    if not tokenizer.has_chat_template:
        raise Refusal(400, "messages: this model has no chat template; use /v1/completions", "messages")
    tools, choice = chosen(body.tools or [], body.tool_choice)
    if is_forced(choice) and not tools:
        raise Refusal(400, "tool_choice: it needs tools", "tool_choice")
    structured = constraint_of(body.response_format, outputs_of(body, body.structured_outputs)) is not None
    if tools and structured:
        name = asked_as(body, body.response_format)
        raise Refusal(400, f"{name}: tools are given too; give one of the two, or tool_choice='none'", name)
    schemas = schemas_of(tools)
    channels = has_channels(tokenizer)
    written = _calls_of(tokenizer, channels) if tools else None
    forced = None
    if choice is not None and is_forced(choice):
        written, forced = forced_call(choice, schemas, written)
    constrained = forced is not None or structured
    rendered = _rendered(body, tools, tokenizer, constrained)
    check_unicode(rendered, "prompt")
    if not rendered.strip():
        raise Refusal(400, "messages: the model's chat template makes no text of them", "messages")
    check_size(rendered, engine, "messages")
    harmony = channels and not constrained and (reasoning or bool(tools))
    # an answer that is held to a grammar begins with it, whatever the prompt opened
    tags = thought_tags_of(tokenizer) if reasoning and not constrained and not harmony else None
    begin = Begin.BEFORE if tags is None else begin_behind(rendered, tags)
    parallel = body.parallel_tool_calls is not False
    format = AnswerFormat(reasoning and not constrained, tags, begin, harmony, written, schemas, parallel)
    return ChatPrompt(tokenizer.encode_rendered(rendered), format, forced)


def _calls_of(tokenizer: Tokenizer, channels: bool) -> CallFormat | None:
    """How the model writes calls; None where that is in channels. Raises Refusal where its template knows no tools."""
    if not takes_tools(tokenizer):
        why = "the model's chat template has no place for them; leave them out"
        raise Refusal(400, f"tools: {why}", "tools", "unsupported_parameter")
    found = call_format_of(tokenizer)
    if found is None and not channels:
        why = "how this model writes calls is not known here; leave them out"
        raise Refusal(400, f"tools: {why}", "tools", "unsupported_parameter")
    return None if channels else found


def _rendered(body: ChatBody, tools: list[Tool], tokenizer: Tokenizer, constrained: bool) -> str:
    variables = variables_of(body, tokenizer, constrained)
    offered = for_template(tools) or None
    # SmolLM3 tells functions that are called in XML from those called in Python
    if offered and "tools" not in tokenizer.template_variables:
        variables["xml_tools"] = offered
    try:
        return tokenizer.render(messages_of(body, tokenizer), offered, variables)
    except RefusedMessages:
        if not any(message.tool_calls for message in body.messages):
            raise
        # most templates want the arguments of calls as objects, and some as the texts that clients send
        try:
            return tokenizer.render(messages_of(body, tokenizer, texts=True), offered, variables)
        except RefusedMessages:
            pass
        raise
