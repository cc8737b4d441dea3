"""Where prompts come from, and what is refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace
from typing import Any

import pytest

from spec_sdk import standard_input
from spec_sdk.bench.conversations import read_conversations
from spec_sdk.errors import UserError
from spec_sdk.prompts import DEFAULT_PROMPT, SHIPPED, read_prompt_file, read_prompt_texts, read_prompts


def read(prompt: str | None = None, prompt_file: str | None = None, prompt_limit: int | None = None) -> list[str]:
    settings: Any = SimpleNamespace(prompt=prompt, prompt_file=prompt_file, prompt_limit=prompt_limit, audio=None)
    return [prompt.text for prompt in read_prompts(settings)]


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


@pytest.mark.parametrize("name", ["p.jsonl", "p.ndjson", "P.NDJSON"])
def test_json_lines_have_prompts_or_turns(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"prompt": "one"}\n\n{"turns": ["two", "more"], "question_id": 3}\n')
    assert read(prompt_file=name) == ["one", "two"]
    assert read(prompt_file=name, prompt_limit=1) == ["one"]
    assert [each.turns for each in read_conversations(name).conversations] == [("one",), ("two", "more")]


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
        ('"a text"', "not an object with 'prompt', 'messages' or 'turns'"),
        ('{"text": "x"}', "has neither a text 'prompt' nor a list of 'messages' nor a non-empty list of texts 'turns'"),
        ('{"prompt": "x", "id": 1.5}', "its 'id' 1.5 is neither a text nor a whole number"),
        ('{"prompt": "x", "question_id": true}', "its 'question_id' True is neither"),
        ('{"prompt": "\\ud800"}', "no valid Unicode text (character 0)"),
        ('{"messages": []}', "its 'messages' are no list of messages"),
        ('{"messages": "hi"}', "its 'messages' are no list of messages"),
        ('{"messages": ["hi"]}', "message 1 is no object with 'role' and 'content'"),
        (
            '{"messages": [{"role": "usr", "content": "x"}]}',
            "message 1 has an unknown role 'usr', did you mean",
        ),
        ('{"messages": [{"content": "x"}]}', "message 1 has an unknown role None; there are: assistant, system, user"),
        ('{"messages": [{"role": "user", "content": ["x"]}]}', "message 1 has no text 'content'"),
        ('{"messages": [{"role": "user", "content": " "}]}', "message 1 is empty"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}',
            "the last message must be the user's, and is the assistant's",
        ),
        ('{"turns": []}', "has neither"),
        ('{"prompt": 5}', "has neither"),
        ('{"prompt": " "}', "its prompt is empty"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n' + line + "\n")
    assert error(prompt_file="p.jsonl").startswith(f"prompt_file: p.jsonl line 2: {message}")


def test_a_misspelt_key_of_a_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": 3, "pormpt": "x"}\n')
    assert error(prompt_file="p.jsonl").endswith("texts 'turns'; did you mean 'prompt' by 'pormpt'?")


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
        standard_input.whole_text.cache_clear()
        standard_input.piped_text.cache_clear()

    yield put
    for end in open_ends:
        os.close(end)


def test_bytes_that_are_no_text_are_told_of_by_name(
    stdin: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the locale has standard input read with surrogates in their place."""
    stdin("", True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8", errors="surrogateescape"))
    with pytest.raises(UserError, match=r"^prompt: standard input is no UTF-8 text \(byte 3\)$"):
        standard_input.whole_text()


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


def test_a_silent_pipe_of_nobodys_is_waited_for_a_while(
    stdin: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a CI runner or sshd leaves it: only this process and its ancestors could write."""
    monkeypatch.setattr(standard_input, "NOTICE_S", 0.1)
    monkeypatch.setattr(standard_input, "PATIENCE_S", 0.3)
    stdin(None, False)
    assert read() == [DEFAULT_PROMPT]
    waiting, going_on = capsys.readouterr().err.splitlines()
    assert waiting.startswith("waiting for a prompt on standard input (prompt=TEXT or </dev/null: without one)")
    assert going_on.endswith("going on with the default prompt (prompt=- waits on)")


READ = """
from types import SimpleNamespace as S
from spec_sdk import prompts, standard_input
standard_input.NOTICE_S, standard_input.PATIENCE_S = 0.1, 0.2
[prompt] = prompts.read_prompts(S(prompt=None, prompt_file=None, prompt_limit=None, audio=None))
print(prompt.text)
"""


def test_a_neighbour_in_the_pipeline_is_waited_for_as_long_as_it_lives(tmp_path: Path) -> None:
    """Many times the patience that a pipe of an ancestor gets; what it sends is what is answered."""
    command = f'(sleep 2; echo late) | {sys.executable} -c "$0"'
    done = subprocess.run(["sh", "-c", command, READ], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "late\n", done.stderr
    assert done.stderr.startswith("waiting for a prompt")


def test_what_a_neighbour_wrote_before_it_ended_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends while it is looked for, so that nobody holds the other end."""
    reads, writes = os.pipe()

    def ends(descriptor: int) -> bool:
        os.write(writes, b"late")
        os.close(writes)
        return False

    monkeypatch.setattr(standard_input, "_neighbour_writes", ends)
    monkeypatch.setattr(standard_input, "NOTICE_S", 0.01)
    monkeypatch.setattr(standard_input, "PATIENCE_S", 0.02)
    with open(reads) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read() == ["late"]


@pytest.mark.parametrize("socket", [False, True])
def test_an_inherited_pipe_that_nobody_writes_to_does_not_hang(socket: bool) -> None:
    """It stays open in the parent, as an agent's does."""
    ends = [end.detach() for end in socketpair()] if socket else os.pipe()
    try:
        done = subprocess.run(
            ["sh", "-c", f'{sys.executable} -c "$0"; true', READ],
            stdin=ends[0],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        for end in ends:
            os.close(end)
    assert done.stdout == DEFAULT_PROMPT + "\n", done.stderr


def test_a_prompt_has_the_id_of_its_line(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "question_id": 81, "id": "x"}', "", '{"prompt": "b", "id": "y"}', '{"prompt": "c"}']
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    assert [(p.id, p.content) for p in read_prompt_file("p.jsonl")] == [(81, "a"), ("y", "b"), (4, "c")]


def test_prompts_of_one_id_are_refused_where_answers_are_told_apart_by_it(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": 2, "prompt": "a"}\n{"prompt": "b"}\n')
    with pytest.raises(UserError, match=r"p\.jsonl line 2: there is a prompt 2 already; a line without an id has its"):
        read_prompt_file("p.jsonl")
    (tmp_path / "p.jsonl").write_text('{"id": "x", "prompt": "a"}\n{"id": "x", "prompt": "b"}\n')
    with pytest.raises(UserError, match=r"line 2: there is a prompt 'x' already$"):
        read_prompt_file("p.jsonl")
    assert read_prompt_texts("p.jsonl") == ["a", "b"]


def test_a_line_may_have_the_messages_of_a_chat(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": [{**m, "name": "n"} for m in messages], "turns": ["x"]}))
    [prompt] = read_prompt_file("p.jsonl")
    assert prompt.content == tuple(messages)
    assert prompt.text.startswith("system: Be brief.\n\nuser: one")
    with pytest.raises(UserError, match=r"task\.text: p\.jsonl: prompt 1 has messages"):
        read_prompt_texts("p.jsonl", "task.text")


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
    code += "prompt_file=None, prompt_limit=None, audio=None)) == [Prompt(1, DEFAULT_PROMPT)])"
    done = subprocess.run(["sh", "-c", f'{sys.executable} -c "$0" <&-', code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
