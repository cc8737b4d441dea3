"""Files by name and by line, and one line for what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_sdk.errors import UserError
from spec_sdk.speech.recordings import Recording, read_recordings
from tests.support.tiny_whisper import sound, write_wav


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "sounds").mkdir()
    for name in ("a", "b"):
        write_wav(tmp_path / "sounds" / f"{name}.wav", sound(1, 0.1))
    return tmp_path


def listed(place: Path, *lines: object) -> str:
    path = place / "list.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_names_and_lines(place: Path) -> None:
    a, b = (str(place / "sounds" / f"{name}.wav") for name in "ab")
    lines = listed(
        place,
        {"audio": "sounds/b.wav", "reference": "what is said", "language": "en", "id": 7},
        "",
        {"audio": a, "id": "the first"},
        {"audio": "sounds/a.wav", "reference": None},
    )
    assert read_recordings([a, lines]) == [
        Recording(a, a),
        Recording("7", b, "what is said", "en"),
        Recording("the first", a),
        Recording("sounds/a.wav", a),
    ]
    assert len(read_recordings([a, lines], limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"audio": "sounds/c.wav"}, r"list.jsonl line 1: \S+/sounds/c.wav does not exist"),
        ({"reference": "x"}, "list.jsonl line 1: there is no 'audio'"),
        ({"audio": 3}, "line 1: 'audio' is 3, not a text"),
        ({"audio": "sounds/a.wav", "text": "x"}, "line 1: unknown key 'text'"),
        ({"audio": "sounds/a.wav", "refrence": "x"}, "unknown key 'refrence', did you mean 'reference'"),
        ({"audio": "sounds/a.wav", "reference": ["x"]}, "'reference' is"),
        ({"audio": "sounds/a.wav", "id": [1]}, "'id' is"),
        ("[1]", "line 1: .* is no JSON object"),
        ("{\n{}", "line 1: no JSON"),
        ("{", "no JSON"),
        ("", "has no lines; one is"),
    ],
)
def test_what_is_wrong_is_one_line(line: object, message: str, place: Path) -> None:
    name = listed(place, line)
    with pytest.raises(UserError, match=message) as error:
        read_recordings([name])
    assert "\n" not in str(error.value)


def test_no_such_list(place: Path) -> None:
    with pytest.raises(UserError, match="^audio: .*none.ndjson does not exist"):
        read_recordings([str(place / "none.ndjson")])
