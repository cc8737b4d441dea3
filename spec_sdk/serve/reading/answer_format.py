"""How the answers of a model are read: found from its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.serve.reading.call_formats import (
    BareJson,
    CallFormat,
    FunctionTags,
    MarkedList,
    MistralCalls,
    TaggedJson,
    TaggedValues,
)
from spec_sdk.serve.reading.call_reader import CallReader
from spec_sdk.serve.reading.call_sections import DeepSeekCalls, KimiCalls
from spec_sdk.serve.reading.harmony import MARKS, HarmonyReader
from spec_sdk.serve.reading.pieces import Call, Content, ContentReader, Piece, Reader, Thought, Tools
from spec_sdk.serve.reading.python_calls import PythonCalls
from spec_sdk.serve.reading.quoted_calls import QuotedCalls
from spec_sdk.serve.reading.thoughts import Begin, ThoughtReader, ThoughtTags, begin_of_whole

THOUGHT_TAGS = (
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("[THINK]", "[/THINK]"),
    ThoughtTags("<think>", "</think>"),
    ThoughtTags("<|channel>thought", "<channel|>", "<|channel>"),
)
CALL_FORMATS: Sequence[tuple[Sequence[str], Callable[[], CallFormat]]] = (
    (["[TOOL_CALLS]"], MistralCalls),
    ([DeepSeekCalls.section[0]], DeepSeekCalls),
    ([KimiCalls.section[0]], KimiCalls),
    (["<|tool_call>call:"], QuotedCalls),
    (["<TOOLCALL>"], lambda: MarkedList("<TOOLCALL>", "</TOOLCALL>")),
    (["<|tool_call|>"], lambda: MarkedList("<|tool_call|>", "<|/tool_call|>")),
    (["<arg_key>", "<tool_call>"], TaggedValues),
    (["<function=", "<seed:tool_call>"], lambda: FunctionTags("<seed:tool_call>", "</seed:tool_call>")),
    (["<function=", "<tool_call>"], FunctionTags),
    (["<tool_call>"], TaggedJson),
    (['{"name": function name, "parameters"'], BareJson),
)
"""What a template says of calls, and how they are written then; the first of which it says all counts."""
BY_VOCABULARY = (PythonCalls,)
"""Forms of models whose templates do not show them: their marks are tokens."""


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers to a request are read.

    ``thoughts``: whether they are told apart from content. ``tags``: what stands around them, and ``begin`` where the
    answer begins; None where there are none, or channels (``harmony``). ``calls``: how calls are written, None where
    none are looked for; ``tools``: what may be called. ``parallel``: whether more calls than the first count.
    """

    thoughts: bool = False
    tags: ThoughtTags | None = None
    begin: Begin = Begin.BEFORE
    harmony: bool = False
    calls: CallFormat | None = None
    tools: Tools = field(default_factory=dict)
    parallel: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that stand for the structure of an answer, which are special tokens in some vocabularies."""
        if self.harmony:
            return MARKS
        of_thoughts = () if self.tags is None else self.tags.marks
        return of_thoughts if self.calls is None else (*of_thoughts, *self.calls.opens, *self.calls.inner)

    def reader(self, whole: str | None = None) -> Reader:
        """A reader of one answer. ``whole``: its text, if it is all there."""
        if self.harmony:
            return AnswerReader(ContentReader(), HarmonyReader(bool(self.tools)), self)
        if self.tags is None and self.calls is None:
            return ContentReader()
        calls = ContentReader() if self.calls is None else CallReader(self.calls, self.tools)
        if self.tags is None:
            return AnswerReader(calls, ContentReader(), self)
        begin = self.begin if whole is None else begin_of_whole(whole, self.tags, self.begin)
        return AnswerReader(calls, ThoughtReader(self.tags, begin), self)


class AnswerReader:
    """Reads thoughts first, and calls in the content that is left."""

    def __init__(self, calls: Reader, thoughts: Reader, format: AnswerFormat) -> None:
        self._calls, self._thoughts, self._format = calls, thoughts, format
        self._called = False

    @property
    def thinking(self) -> bool:
        return self._thoughts.thinking

    def push(self, text: str) -> list[Piece]:
        return self._through(self._thoughts.push(text))

    def flush(self) -> list[Piece]:
        return [*self._through(self._thoughts.flush()), *self._counted(self._calls.flush())]

    def _through(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                found += self._counted(self._calls.push(piece.text))
            elif isinstance(piece, Thought):
                found.append(piece if self._format.thoughts else Content(piece.text))
            else:
                found += self._counted([piece])
        return found

    def _counted(self, pieces: list[Piece]) -> list[Piece]:
        """Pieces without the calls that do not count."""
        found = []
        for piece in pieces:
            if isinstance(piece, Call):
                if self._called and not self._format.parallel:
                    continue
                self._called = True
            found.append(piece)
        return found


def thought_tags_of(tokenizer: Tokenizer) -> ThoughtTags | None:
    """What a model writes around its thoughts; None for one that is not known to think, or has channels."""
    for tags in THOUGHT_TAGS:
        if tokenizer.template_mentions(tags.open) or tokenizer.template_mentions(tags.close):
            return tags
    known = tokenizer.vocabulary
    return next((tags for tags in THOUGHT_TAGS if tags.open in known and tags.close in known), None)


def has_channels(tokenizer: Tokenizer) -> bool:
    """Whether a model writes gpt-oss's channels."""
    return tokenizer.template_mentions("<|channel|>") and tokenizer.template_mentions("<|message|>")


def call_format_of(tokenizer: Tokenizer) -> CallFormat | None:
    """How a model writes calls of tools; None where that is not known, or in channels."""
    for marks, make in CALL_FORMATS:
        if all(map(tokenizer.template_mentions, marks)):
            return make()
    known = tokenizer.vocabulary
    return next((form() for form in BY_VOCABULARY if {*form.opens, *form.inner} <= known.keys()), None)


def takes_tools(tokenizer: Tokenizer) -> bool:
    """Whether a model's chat template has a place for tools."""
    return not tokenizer.template_variables.isdisjoint(["tools", "xml_tools"])
