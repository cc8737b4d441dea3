"""A call that an answer is held to."""

from __future__ import annotations

import contextlib
import json
import re

from spec_sdk.serve.reading.call_formats import DECODER, BareJson
from spec_sdk.serve.reading.pieces import Call, Tools

BEGUN = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*"\w+"\s*:\s*(.*))?', re.DOTALL)
"""The name, and of the arguments as much as there is."""


class ForcedCall(BareJson):
    """The answer is one JSON object, and nothing else. Cut off, it is a call as far as it came, as at OpenAI: whoever
    asked for a call looks for none in the content.
    """

    def calls(self, body: str, tools: Tools) -> list[Call] | None:
        return super().calls(body, tools) or _begun(body)


def _begun(body: str) -> list[Call]:
    """No call where it was cut off before it had a name."""
    found = BEGUN.match(body)
    if found is None:
        return []
    arguments = found[2] or ""
    with contextlib.suppress(ValueError, RecursionError):
        arguments = arguments[: DECODER.raw_decode(arguments)[1]]
    return [Call(json.loads(found[1]), arguments, whole=False)]
