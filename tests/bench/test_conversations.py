"""What a benchmark asks: files of conversations, and how a later turn is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_sdk.bench.conversations import Conversation, read_conversations, spread, task_name
from spec_sdk.errors import UserError
from spec_sdk.model.tokenizer import Tokenizer
from tests.support.text_checkpoints import VOCABULARY, write_text_checkpoint


def tokenizer(directory: Path, chat: bool) -> Tokenizer:
    write_text_checkpoint(directory, chat)
    return Tokenizer(directory, VOCABULARY)


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_the_shipped_sample_has_spec_benchs_six_tasks_and_both_turns() -> None:
    prompts = read_conversations(None)
    tasks = dict.fromkeys(task_name(c.task) for c in prompts.conversations)
    assert prompts.file == "spec_bench_sample" and len(prompts.conversations) == 35
    assert list(tasks) == [
        "multi-turn conversation",
        "translation",
        "summarization",
        "question answering",
        "mathematical reasoning",
        "retrieval-augmented generation",
    ]
    assert {c.length for c in prompts.conversations if c.task == "mt_bench"} == {2}
    few = read_conversations(None, count=7)
    assert len({c.task for c in few.conversations}) >= 4 and few.sha256 != prompts.sha256


def test_a_count_is_spread_evenly() -> None:
    assert spread(range(10), 5) == [0, 2, 4, 6, 8]
    assert spread(range(3), 5) == [0, 1, 2]
    assert spread(range(10), 3) == [0, 3, 6]


def test_lines_of_all_shapes(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    file = write(
        tmp_path / "p.jsonl",
        {"question_id": 7, "category": "roleplay", "turns": ["a", "b"]},
        {"prompt": "c", "task": "mine"},
        {"id": "chat", "messages": chat},
    )
    first, second, third = read_conversations(file).conversations
    assert first == Conversation("7", "mt_bench", ("a", "b"))
    assert second == Conversation("2", "mine", ("c",))
    assert (third.id, third.task, third.turns, third.length) == ("chat", "prompts", (), 1)
    (tmp_path / "p.txt").write_text("A text.\n")
    assert read_conversations(str(tmp_path / "p.txt")).conversations == (Conversation("1", "prompts", ("A text.",)),)
    assert read_conversations(None, "Why?").conversations == (Conversation("1", "prompts", ("Why?",)),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"turns": ["a", ""]}, "turn 2 is no text"),
        ({"turns": ["a", 3]}, "turn 2 is no text"),
        ({"turns": ["a"], "task": 3}, "its 'task' 3 is no text"),
        ({"turns": []}, "neither a text 'prompt'"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, line: object, message: str) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(UserError, match=message) as raised:
        read_conversations(file)
    assert "line 2" in str(raised.value)


def test_ids_are_unique(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"id": 2, "prompt": "a"}, {"prompt": "b"})
    with pytest.raises(UserError, match="line 2: there is a prompt '2' already"):
        read_conversations(file)


def test_a_later_turn_is_asked_as_one_chat(tmp_path: Path) -> None:
    words = tokenizer(tmp_path, chat=True)
    talk = Conversation("1", "mt_bench", ("one", "two"))
    asked = words.decode(talk.tokens(words, None, ["first answer"]), skip_special_tokens=False)
    assert asked == "<user>one</s>\n<assistant>first answer</s>\n<user>two</s>\n<assistant>"
    assert words.decode(talk.tokens(words, None, [])) == "<user>one\n<assistant>"


def test_without_a_template_turns_stand_below_one_another(tmp_path: Path) -> None:
    words = tokenizer(tmp_path, chat=False)
    talk = Conversation("1", "mt_bench", ("one", "two"))
    assert words.decode(talk.tokens(words, None, ["first answer"])) == "one\n\nfirst answer\n\ntwo"
