"""Thoughts are told apart from content, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from spec_sdk.serve.reading.pieces import Content, Piece, Thought
from spec_sdk.serve.reading.thoughts import Begin, ThoughtReader, ThoughtTags, begin_behind, begin_of_whole
from tests.support.read_pieces import cuts, read

TAGS = ThoughtTags("<think>", "</think>")
BEFORE, INSIDE, BEHIND = Begin.BEFORE, Begin.INSIDE, Begin.BEHIND

CASES: dict[str, tuple[Begin, str, list[Piece]]] = {
    "both tags": (BEFORE, "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", [Thought("Hm.\n\nSo."), Content("Yes.\n")]),
    "white space before": (BEFORE, "\n <think>Hm.</think>Yes.", [Thought("Hm."), Content("Yes.")]),
    "opened by the prompt": (INSIDE, "Hm.</think>Yes.", [Thought("Hm."), Content("Yes.")]),
    "opened by both": (INSIDE, "<think>\nHm.</think>Yes.", [Thought("Hm."), Content("Yes.")]),
    "not closed": (BEFORE, "<think>Hm. ", [Thought("Hm.")]),
    "not closed, opened by the prompt": (INSIDE, "Hm.</thin", [Thought("Hm.</thin")]),
    "none": (BEFORE, " Yes. \n", [Content(" Yes. \n")]),
    "closed by the prompt": (BEHIND, "\nYes.", [Content("\nYes.")]),
    "again behind closed ones": (BEHIND, "<think>Hm.</think>Yes.", [Thought("Hm."), Content("Yes.")]),
    "no thought": (BEFORE, "<think>\n\n</think>\n\nYes.", [Content("Yes.")]),
    "no thought, opened by the prompt": (INSIDE, "\n</think>\nYes.", [Content("Yes.")]),
    "no content": (BEFORE, "<think>Hm.</think>\n", [Thought("Hm.")]),
    "begin of a tag": (BEFORE, "<thin", [Content("<thin")]),
    "another tag": (BEFORE, "<thinker>", [Content("<thinker>")]),
    "quoted": (BEFORE, "Use <think>a</think>.", [Content("Use <think>a</think>.")]),
    "quoted behind": (INSIDE, "a</think>Use </think>.", [Thought("a"), Content("Use </think>.")]),
    "nothing": (BEFORE, "", []),
    "white space alone": (BEFORE, "\n", [Content("\n")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_text(case: str) -> None:
    begin, text, pieces = CASES[case]
    assert read(ThoughtReader(TAGS, begin), [text]) == pieces
    assert read(ThoughtReader(TAGS, begin), text) == pieces


@pytest.mark.parametrize("begin", Begin)
@given(texts=cuts(["<think>", "</think>", "</thi"]))
@settings(deadline=None, derandomize=True, database=None, max_examples=300)
def test_cuts_change_nothing(begin: Begin, texts: list[str]) -> None:
    whole = "".join(texts)
    pieces = read(ThoughtReader(TAGS, begin), texts)
    assert pieces == read(ThoughtReader(TAGS, begin), [whole])
    kept = "".join(piece.text for piece in pieces if not hasattr(piece, "name"))
    plain = "".join(whole.replace("<think>", "").replace("</think>", "").split())
    assert plain == "".join(kept.replace("<think>", "").replace("</think>", "").split()), "text got lost"


def test_what_is_certain_is_told_at_once() -> None:
    reader = ThoughtReader(TAGS, BEFORE)
    told = [reader.push(text) for text in ("<th", "ink>", "a", " b <", "/think>", "\n", "c", " d ")]
    assert told == [[], [], [Thought("a")], [Thought(" b")], [], [], [Content("c")], [Content(" d ")]]


def test_thinking_says_whether_thoughts_come() -> None:
    reader, seen = ThoughtReader(TAGS, BEFORE), []
    for text in ("<think>", "a", "</think>", "b"):
        reader.push(text)
        seen.append(reader.thinking)
    assert seen == [True, True, False, False]
    assert ThoughtReader(TAGS, INSIDE).thinking


@pytest.mark.parametrize(
    ("prompt", "begin"),
    [("<a>\n<think>\n", INSIDE), ("<a><think>\n\n</think>\n\n", BEHIND), ("say <think> <a>", BEFORE), ("", BEFORE)],
)
def test_the_prompts_end_says_where_an_answer_begins(prompt: str, begin: Begin) -> None:
    assert begin_behind(prompt, TAGS) is begin


@pytest.mark.parametrize(
    ("text", "begin", "found"),
    [
        ("Hm.</think>Yes.", BEFORE, INSIDE),
        ("<think>Hm.</think>Yes.", BEFORE, BEFORE),
        ("Yes.", BEFORE, BEFORE),
        ("Use </think>.", BEHIND, BEHIND),
    ],
)
def test_a_whole_answer_may_lack_the_opening(text: str, begin: Begin, found: Begin) -> None:
    assert begin_of_whole(text, TAGS, begin) is found
