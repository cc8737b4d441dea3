"""Where prompts come from, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spec_sdk import prompts
from spec_sdk.errors import UserError
from spec_sdk.prompts import DEFAULT_PROMPT, SHIPPED, read_prompts


def read(prompt: str | None = None, prompt_file: str | None = None, prompt_limit: int | None = None) -> list[str]:
    settings: Any = SimpleNamespace(prompt=prompt, prompt_file=prompt_file, prompt_limit=prompt_limit)
    return read_prompts(settings)


def error(**given: Any) -> str:
    with pytest.raises(UserError) as refused:
        read(**given)
    return str(refused.value)


def test_without_anything_there_is_a_default() -> None:
    assert read() == [DEFAULT_PROMPT]


def test_the_prompt_given() -> None:
    assert read("hello") == ["hello"]


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_an_empty_prompt_is_refused(empty: str) -> None:
    assert error(prompt=empty).startswith("prompt: it is empty")


def test_a_prompt_that_is_no_unicode_is_refused() -> None:
    assert error(prompt="a\udcff") == "prompt: no valid Unicode text (character 1)"


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("two\nlines\n")
    assert read(prompt_file="p.txt") == ["two\nlines"]


def test_json_lines_have_prompts_or_turns(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n\n{"turns": ["two", "more"], "question_id": 3}\n')
    assert read(prompt_file="p.jsonl") == ["one", "two"]
    assert read(prompt_file="p.jsonl", prompt_limit=1) == ["one"]


def test_prompts_that_come_along_are_found_by_name_from_anywhere(tmp_path: Path) -> None:
    """Some of each of Spec-Bench's tasks; a file of one's own that has the name is given with its directory."""
    (tmp_path / "spec_bench_sample").write_text("mine")
    lines = [json.loads(line) for line in SHIPPED["spec_bench_sample"].read_text(encoding="utf-8").splitlines()]
    assert read(prompt_file="spec_bench_sample") == [line["turns"][0] for line in lines]
    assert read(prompt_file="./spec_bench_sample") == ["mine"]
    counts = Counter(line["task"] for line in lines)
    assert set(counts) == {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"}
    assert min(counts.values()) >= 5 and max(len(line["turns"][0]) for line in lines) > 6000
    assert SHIPPED["spec_bench_sample"].stat().st_size < 100_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "not JSON: "),
        ('"a text"', "not an object with 'prompt' or 'turns'"),
        ('{"text": "x"}', "has neither a text 'prompt' nor a non-empty list of texts 'turns'"),
        ('{"turns": []}', "has neither"),
        ('{"prompt": 5}', "has neither"),
        ('{"prompt": " "}', "its prompt is empty"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n' + line + "\n")
    assert error(prompt_file="p.jsonl").startswith(f"prompt_file: p.jsonl line 2: {message}")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "empty.txt").write_text("\n")
    assert error(prompt_file="none.txt") == "prompt_file: none.txt does not exist"
    near = "prompt_file: spec_bench.jsonl does not exist, did you mean 'spec_bench_sample'?"
    assert error(prompt_file="spec_bench.jsonl") == near
    assert error(prompt_file=str(tmp_path)).startswith(f"prompt_file: {tmp_path} cannot be read: ")
    assert error(prompt_file="latin.txt") == "prompt_file: latin.txt is no UTF-8 text (byte 3)"
    assert error(prompt_file="empty.jsonl") == "prompt_file: empty.jsonl has no lines"
    assert error(prompt_file="empty.txt").startswith("prompt_file: empty.txt is empty")


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str | None, bool], None]]:
    """``stdin(text, file)`` puts a file or a pipe with ``text`` there; None: a pipe that stays open and silent."""
    open_ends: list[int] = []

    def put(text: str | None, file: bool) -> None:
        if file:
            (tmp_path / "stdin").write_text(text or "")
            stream = os.fdopen(os.open(tmp_path / "stdin", os.O_RDONLY))
        else:
            reader, writer = os.pipe()
            if text is None:
                open_ends.append(writer)
            else:
                os.write(writer, text.encode())
                os.close(writer)
            stream = os.fdopen(reader)
        monkeypatch.setattr(sys, "stdin", stream)
        prompts._stdin_text.cache_clear()
        prompts._piped_text.cache_clear()

    yield put
    for end in open_ends:
        os.close(end)


@pytest.mark.parametrize("file", [True, False])
def test_what_is_piped_in_is_the_prompt(stdin: Callable[..., None], file: bool) -> None:
    stdin("from a pipe\n", file)
    assert read() == ["from a pipe"]
    assert read() == ["from a pipe"]  # the second job of a sweep


def test_a_dash_reads_standard_input(stdin: Callable[..., None]) -> None:
    stdin("text\n", False)
    assert read("-") == read(prompt_file="-") == ["text"]


def test_a_prompt_given_beats_the_pipe(stdin: Callable[..., None]) -> None:
    stdin("from a pipe", False)
    assert read("given") == ["given"]


def test_a_silent_pipe_is_not_waited_for(stdin: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    stdin(None, False)
    assert read() == [DEFAULT_PROMPT]
    assert "prompt=- does" in capsys.readouterr().err


def test_a_pipe_closed_unwritten_is_no_prompt(stdin: Callable[..., None]) -> None:
    stdin("", False)
    assert read() == [DEFAULT_PROMPT]


def test_an_empty_file_on_standard_input_is_refused(stdin: Callable[..., None]) -> None:
    stdin("", True)
    assert error().startswith("prompt: standard input is empty")
    stdin("", False)
    assert error(prompt="-").startswith("prompt: standard input is empty")


def test_a_closed_standard_input_is_no_prompt() -> None:
    code = "from types import SimpleNamespace as S; from spec_sdk.prompts import *; print(read_prompts(S(prompt=None, "
    code += "prompt_file=None, prompt_limit=None)) == [DEFAULT_PROMPT])"
    done = subprocess.run(["sh", "-c", f'{sys.executable} -c "$0" <&-', code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
