"""The bytes of a text that tokens stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

FALLBACK = re.compile("<0x([0-9A-F]{2})>")
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
"""Byte-level BPE's characters, one for each byte."""
LOSSLESS = ("NFC", "Prepend", "ByteLevel", "Digits", "Metaspace")
"""Normalizers and pre-tokenizers that leave out nothing."""
LARGEST_COMPOSED = 3
"""Times its bytes that a character may take before NFC composes it."""


def raw_bytes(token: str, text: str) -> bytes:
    """The bytes of a token by how the vocabulary spells it; those of ``text``, its text, if it spells none."""
    if (byte := FALLBACK.fullmatch(token)) is not None:
        return bytes([int(byte[1], 16)])
    if all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token)
    return text.encode()


def bytes_per_token(tokenizer: str) -> int | None:
    """Bytes of a text that a token stands for, at most, by the text of a ``tokenizer.json``.

    None where the tokenizer leaves out some of a text, or one token stands for any number of unknown characters.
    """
    told: Mapping[str, Any] = json.loads(tokenizer)
    normalizers = list(_steps(told.get("normalizer"), "normalizers"))
    splits = list(_steps(told.get("pre_tokenizer"), "pretokenizers"))
    model, added = told["model"], told.get("added_tokens") or []
    knows_all = any(step["type"] == "ByteLevel" for step in splits) or model.get("byte_fallback") is True
    if model.get("type") != "BPE" or not knows_all or not all(_keeps_all(step) for step in (*normalizers, *splits)):
        return None
    if any(one["lstrip"] or one["rstrip"] for one in added):
        return None
    longest = max(len(token.encode()) for token in (*model["vocab"], *(one["content"] for one in added)))
    return LARGEST_COMPOSED * longest if any(step["type"] == "NFC" for step in normalizers) else longest


def _keeps_all(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        return len(step["pattern"].get("String", "").encode()) in range(1, len(step["content"].encode()) + 1)
    return step["type"] in LOSSLESS or (step["type"] == "Split" and step["behavior"] != "Removed")


def _steps(given: Mapping[str, Any] | None, several: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a part of the pipeline, those of sequences one by one."""
    if given is not None and given.get("type") == "Sequence":
        for one in given[several]:
            yield from _steps(one, several)
    elif given is not None:
        yield given
