"""What is told of bodies that cannot be read, or have what no request has."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fastapi.exceptions import RequestValidationError

from spec_sdk.errors import did_you_mean
from spec_sdk.serve.bodies import NEUTRAL, Body
from spec_sdk.serve.faults import Refusal

SEVERAL = {
    "prompt": "a text, token ids, or a list of up to 128 of one of the two",
    "stop": "a text, or a list of up to 16, none of them empty",
    "tool_choice": "none, auto, required, a function like {'type': 'function', 'function': {'name': …}}, or some like "
    "{'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': […]}}",
    "content": "a text, or a list of one part or more like {'type': 'text', 'text': …}",
    "schema": "a JSON Schema: an object, true or false",
    "json": "a JSON Schema: an object, true or false, or the text of one",
    "guided_json": "a JSON Schema: an object, true or false, or the text of one",
}
"""Options of which there are several types."""


OF_CLIENTS = ("logit_bias", "metadata", "tools", "chat_template_kwargs")
"""Options whose keys are clients' own, and may be called anything."""
NEAR = 0.7
"""How much an unknown option must look like another: names of two options often share a word."""


def unread_body(cause: BaseException | None) -> Refusal | None:
    """What is told of a body that the JSON reader gave up, by why; None for what is no such cause."""
    if isinstance(cause, UnicodeDecodeError):
        return _no_json(f"the body is no UTF-8: {cause.reason} at byte {cause.start}")
    if isinstance(cause, RecursionError):
        return _no_json("the body is nested too deeply")
    if isinstance(cause, ValueError):
        return _no_json(f"the body has a number of more than {sys.get_int_max_str_digits()} digits")
    return None


def wrong_body(error: RequestValidationError, body: type[Body]) -> Refusal:
    """The first thing that is wrong, by its place in the body, without what stood there."""
    first = error.errors()[0]
    path = [str(key) for key in first["loc"][1:]]
    if first["type"] == "json_invalid":
        return _no_json(f"the body is no JSON: {first['ctx']['error']} at character {path[0]}")
    if not path:
        if isinstance(error.body, bytes):
            return _no_json("Content-Type: it must be application/json")
        # FastAPI says the same of an empty body and of null
        return _no_json('the body must be a JSON object, such as {"stream": true, …}')
    param = _printable(path[0])[:100]
    if first["type"] == "extra_forbidden" and len(path) == 1:
        return Refusal(400, f"{param}: unknown option{did_you_mean(param, _names(body), NEAR)}", param)
    # of what may be of several types pydantic lists what each of them wants
    several = next((i for i, key in enumerate(path) if key in SEVERAL and param not in OF_CLIENTS), None)
    if several is not None:
        where = _printable(".".join(path[: several + 1]))
        return Refusal(400, f"{where[:100]}: it must be {SEVERAL[path[several]]}", param)
    wrong = "unknown option" if first["type"] == "extra_forbidden" else _printable(first["msg"])[:500]
    return Refusal(400, f"{_printable('.'.join(path))[:100]}: {wrong}", param)


def _names(body: type[Body]) -> Iterable[str]:
    """Options that ask for something."""
    return (name for name in body.model_fields if name not in NEUTRAL)


def _no_json(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_json")


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
