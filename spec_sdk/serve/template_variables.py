"""What a request sets in the chat template besides messages and tools."""

from __future__ import annotations

from typing import Any

from spec_sdk.errors import did_you_mean
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.bodies import ChatBody
from spec_sdk.serve.faults import Refusal

OF_THE_SERVER = frozenset(["messages", "tools", "xml_tools", "add_generation_prompt"])


def variables_of(body: ChatBody, tokenizer: Tokenizer, constrained: bool) -> dict[str, Any]:
    """``chat_template_kwargs``, and ``reasoning_effort`` where the template knows either that or how to do without
    thoughts, for which an answer that is ``constrained`` has no room. Raises Refusal for names that the template does
    not look up.
    """
    known = tokenizer.template_variables - OF_THE_SERVER
    given = body.chat_template_kwargs or {}
    for name in given:
        if name not in known:
            shown = name[:100]
            message = f"chat_template_kwargs: the model's chat template knows no {shown!r}{did_you_mean(shown, known)}"
            raise Refusal(400, message, "chat_template_kwargs")
    effort: dict[str, Any] = {}
    if constrained and "enable_thinking" in known:
        effort["enable_thinking"] = False
    if body.reasoning_effort is not None:
        if "reasoning_effort" in known:
            effort["reasoning_effort"] = body.reasoning_effort
        elif body.reasoning_effort == "none" and "enable_thinking" in known:
            effort["enable_thinking"] = False
    return {**effort, **given}
