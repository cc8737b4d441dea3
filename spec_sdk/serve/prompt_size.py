"""Texts that cannot fit the context."""

from __future__ import annotations

from spec_sdk.api.engine import Engine
from spec_sdk.serve.faults import Refusal


def check_size(text: str, engine: Engine, option: str) -> None:
    """Raise Refusal for a text that cannot fit the context, before it is encoded, which takes longest."""
    size = len(text.encode())
    # looking through the vocabulary takes a while, the first time
    most = engine.tokenizer.bytes_per_token if size > engine.context else None
    if most is not None and size > engine.context * most:
        message = f"{option}: its {size} bytes are more than {engine.context} tokens, the context, can stand for"
        raise Refusal(400, message, option, "context_length_exceeded")
