"""gpt-oss's channels: analysis is thoughts, what goes to functions is calls, the rest is content."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from spec_sdk.serve.reading.harmony import HarmonyReader
from spec_sdk.serve.reading.pieces import Call, Content, Piece, Thought
from tests.support.read_pieces import cuts, read

ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Yes. <|return|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}<|call|>'

CASES: dict[str, tuple[str, list[Piece]]] = {
    "both": (ANALYSIS + FINAL, [Thought("Hm."), Content("Yes. ")]),
    "end token cut": (ANALYSIS + FINAL.removesuffix("<|return|>"), [Thought("Hm."), Content("Yes. ")]),
    "final alone": ("<|channel|>final<|message|>Yes.", [Content("Yes.")]),
    "thoughts alone": ("<|channel|>analysis<|message|>Hm", [Thought("Hm")]),
    "header alone": ("<|channel|>ana", []),
    "call": (ANALYSIS + CALL, [Thought("Hm."), Call("add", '{"a": 2}')]),
    "call, as templates write it": (
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 2}<|call|>',
        [Call("add", '{"a": 2}')],
    ),
    "call without arguments": (
        "<|channel|>commentary to=functions.now<|message|><|call|>",
        [Call("now", "{}")],
    ),
    "call that is none": ("<|channel|>commentary to=functions.add<|message|>{2<|call|>", [Content("{2")]),
    "preamble": ("<|channel|>commentary<|message|>I add.<|end|>" + CALL, [Content("I add."), Call("add", '{"a": 2}')]),
    "thoughts twice": (ANALYSIS + "<|start|>assistant" + ANALYSIS, [Thought("Hm.\nHm.")]),
    "no end between": (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
        [Thought("Hm."), Content("Yes.")],
    ),
    "no channels": ("Just text.", [Content("Just text.")]),
    "word like a recipient": ("together", [Content("together")]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_text(case: str) -> None:
    text, pieces = CASES[case]
    assert read(HarmonyReader(calls=True), [text]) == pieces
    assert read(HarmonyReader(calls=True), text) == pieces


def test_without_tools_a_call_is_content() -> None:
    assert read(HarmonyReader(calls=False), [ANALYSIS + CALL]) == [Thought("Hm."), Content('{"a": 2}')]


@given(texts=cuts([ANALYSIS, FINAL, CALL, "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "to=functions.f"]))
@settings(deadline=None, derandomize=True, database=None, max_examples=400)
def test_cuts_change_nothing(texts: list[str]) -> None:
    assert read(HarmonyReader(calls=True), texts) == read(HarmonyReader(calls=True), ["".join(texts)])


def test_thinking_says_whether_thoughts_come() -> None:
    reader = HarmonyReader(calls=True)
    seen = []
    for text in ("<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>assistant"):
        reader.push(text)
        seen.append(reader.thinking)
    assert seen == [False, False, True, True, False, False]


def test_text_is_told_at_once() -> None:
    reader = HarmonyReader(calls=True)
    reader.push("<|channel|>final<|message|>")
    assert [reader.push(text) for text in ("Yes", " <", "b")] == [[Content("Yes")], [Content(" ")], [Content("<b")]]
