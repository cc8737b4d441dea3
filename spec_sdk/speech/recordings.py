"""Which sounds a run transcribes: files by name, and JSON lines that name files with what is said in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spec_sdk.errors import UserError, did_you_mean
from spec_sdk.files import expanded
from spec_sdk.json_lines import JsonObject, Lines
from spec_sdk.prompt_lines import check_unicode, has_json_lines
from spec_sdk.speech.sound import check_sound

KEYS = ("audio", "reference", "language", "id")


@dataclass(frozen=True)
class Recording:
    """A file to transcribe. ``id``: what results call it. ``reference``: what is said in it; ``language``: its code.
    ``where``: what named it, as errors say it.
    """

    id: str
    path: str
    reference: str | None = None
    language: str | None = None
    where: str = field(default="audio", compare=False)


def read_recordings(names: Sequence[str], limit: int | None = None) -> list[Recording]:
    """Sound files, and those that the lines of ``.jsonl`` (``.ndjson``) files name: ``{"audio": …, "reference": …}``.

    A line's path is relative to its file; ``reference``, ``language`` and ``id`` may be left out. Every file is opened.
    Raises UserError for the first thing that is wrong, with file and line.
    """
    found: list[Recording] = []
    for name in names:
        if has_json_lines(name):
            found += _listed(name)
        else:
            found.append(Recording(name, name))
    found = found[:limit]
    for recording in found:
        check_sound(recording.path, recording.where)
    return found


def _listed(name: str) -> list[Recording]:
    path = expanded(name, "audio")
    if not path.exists():
        raise UserError(f"audio: {name} does not exist")
    lines = Lines(path)
    found = [_recording(line, path.parent) for line in lines]
    if lines.torn:
        raise UserError(f"audio: {name}: its last line is no JSON")
    if not found:
        raise UserError(f'audio: {name} has no lines; one is {{"audio": "a.flac", "reference": "what is said"}}')
    return found


def _recording(line: JsonObject, directory: Path) -> Recording:
    where = f"audio: {line.where}"
    if (unknown := next((key for key in line.data if key not in KEYS), None)) is not None:
        raise UserError(f"{where}: unknown key '{unknown}'{did_you_mean(unknown, KEYS)}")
    try:
        given, reference, language = line.get("audio", str), line.maybe("reference", str), line.maybe("language", str)
        number = line.data.get("id")
        named = given if number is None else str(number) if isinstance(number, int) else line.get("id", str)
    except UserError as error:
        raise UserError(f"audio: {error}") from error
    for text in (given, reference, language, named):
        check_unicode(text or "", where)
    return Recording(named, str(directory / expanded(given, "audio")), reference, language, where)
