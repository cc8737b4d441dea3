"""What clients are sent: answers and chunks of answers in OpenAI's shapes."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.api.answer import Answer, Part
from spec_sdk.engine.token_logprobs import TokenLogprob
from spec_sdk.metrics import ratio
from spec_sdk.model.tokenizer import Tokenizer
from spec_sdk.model.tokenizer_stream import TokenStream
from spec_sdk.serve.echo import Echo
from spec_sdk.serve.messages import deltas_of, message_of, reason_of, thought_tokens, whole_of
from spec_sdk.serve.reading.answer_format import AnswerFormat
from spec_sdk.serve.reading.pieces import Call, ContentReader, Reader
from spec_sdk.serve.speculation import told as told_of_steps

LEAST = -9999.0
"""What stands for a logarithm of 0, which JSON does not know."""


@dataclass
class Told:
    """How far the chunks of one answer are. ``text``: what its tokens come to, ``offset`` characters so far.
    ``reader``: what reads its text; ``calls``: how many of tools it had, and ``whole`` how many of these to their end.
    """

    text: TokenStream
    reader: Reader = field(default_factory=ContentReader)
    calls: int = 0
    whole: int = 0
    offset: int = 0
    begun: bool = False


@dataclass
class Replies(ABC):
    """The replies to one request. ``logprobs``: whether it asked for them. ``echoes``: the prompt of each answer, if
    answers are sent behind them. ``format``: how answers are read.
    """

    model: str
    tokenizer: Tokenizer
    logprobs: bool
    echoes: Sequence[Echo] = ()
    format: AnswerFormat = AnswerFormat()
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _told: dict[int, Told] = field(default_factory=dict)
    prefix = ""
    object = ""
    chunk_object = ""

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"

    def whole(self, answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
        """All answers at once, in the order of their ``index``."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return self._frame(self.object, choices) | {"usage": self._usage(answers, prompt_tokens)}

    def chunks(self, index: int, part: Part) -> list[dict[str, Any]]:
        """What a part adds to the answer with this ``index``; none if there is nothing yet to tell."""
        told = self._told.setdefault(index, self._nothing_told())
        choices = [] if told.begun else self._begin(index, part, told)
        told.begun = True
        if part.text or part.finish_reason or part.steps or (self.logprobs and part.logprobs):
            new = self._chunks(index, part, told)
            if part.steps:
                new[0]["speculation"] = told_of_steps(part.steps)
            choices += new
        return [self._frame(self.chunk_object, [choice]) for choice in choices]

    def usage_chunk(self, answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
        """The last chunk, where ``stream_options`` ask for it."""
        return self._frame(self.chunk_object, []) | {"usage": self._usage(answers, prompt_tokens)}

    def _usage(self, answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
        return usage_of(answers, prompt_tokens)

    def _frame(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": list(choices)}

    def _nothing_told(self) -> Told:
        return Told(self.tokenizer.stream(), self.format.reader())

    @abstractmethod
    def _begin(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]: ...

    @abstractmethod
    def _choice(self, index: int, answer: Answer) -> dict[str, Any]: ...

    @abstractmethod
    def _chunks(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]: ...


class CompletionReplies(Replies):
    """``text_completion``."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        told = self._nothing_told()
        text, echoed = self._echoed(index, answer.prompt_logprobs, told)
        logprobs = self._logprobs(answer.logprobs, told)
        if echoed is not None and logprobs is not None:
            logprobs = {name: [*echoed[name], *own] for name, own in logprobs.items()}
        reason = answer.finish_reason
        return {"index": index, "text": text + answer.text, "logprobs": logprobs, "finish_reason": reason}

    def _begin(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]:
        if not self.echoes:
            return []
        text, logprobs = self._echoed(index, part.prompt_logprobs, told)
        return [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}]

    def _echoed(self, index: int, logprobs: Sequence[TokenLogprob], told: Told) -> tuple[str, dict[str, Any] | None]:
        """What stands before the answer: nothing, or its prompt, whose first token follows nothing and has nulls."""
        if not self.echoes:
            return "", None
        echo = self.echoes[index]
        columns = self._logprobs([TokenLogprob(echo.tokens[0], 0.0), *logprobs], told)
        if columns is not None:
            columns["token_logprobs"][0] = columns["top_logprobs"][0] = None
            # a tokenizer may not give back the text as it came
            columns["text_offset"] = [min(offset, len(echo.text)) for offset in columns["text_offset"]]
        told.text, told.offset = self.tokenizer.stream(), len(echo.text)
        return echo.text, columns

    def _chunks(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]:
        logprobs = self._logprobs(part.logprobs, told)
        return [{"index": index, "text": part.text, "logprobs": logprobs, "finish_reason": part.finish_reason}]

    def _logprobs(self, logprobs: Sequence[TokenLogprob], told: Told) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        texts, offsets = [], []
        for one in logprobs:
            texts.append(self._key(one.token))
            offsets.append(told.offset)
            # a part of a character adds nothing to the text, and the last one all of it
            told.offset += len(told.text.push([one.token]))
        return {
            "tokens": texts,
            "token_logprobs": [max(one.logprob, LEAST) for one in logprobs],
            "top_logprobs": [self._alternatives(one) for one in logprobs],
            "text_offset": offsets,
        }

    def _alternatives(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest first, also of tokens with the same text; the answer's own always."""
        told: dict[str, float] = {}
        for token, value in (*one.top, (one.token, one.logprob)):
            told.setdefault(self._key(token), max(value, LEAST))
        return told

    def _key(self, token: int) -> str:
        """Its text; as OpenAI has it, bytes that are no text are written in hexadecimal digits."""
        spelt = self.tokenizer.bytes_of(token)
        try:
            return spelt.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelt)


class ChatReplies(Replies):
    """``chat.completion``."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        reader = self.format.reader(answer.text)
        message, calls = message_of([*reader.push(answer.text), *reader.flush()])
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": reason_of(answer.finish_reason, calls),
        }

    def _begin(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def _chunks(self, index: int, part: Part, told: Told) -> list[dict[str, Any]]:
        """One for each piece of the answer, since some clients look at one field of each."""
        pieces = told.reader.push(part.text)
        if part.finish_reason is not None:
            pieces += told.reader.flush()
        deltas = deltas_of(pieces, told.calls)
        if not deltas and (part.finish_reason or part.steps or self.logprobs):
            deltas.append({})
        told.calls += sum(isinstance(piece, Call) for piece in pieces)
        told.whole += whole_of(pieces)
        choices: list[dict[str, Any]] = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        if choices:
            choices[0]["logprobs"] = self._logprobs(part.logprobs)
        if part.finish_reason is not None:
            choices[-1]["finish_reason"] = reason_of(part.finish_reason, told.whole)
        return choices

    def _usage(self, answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
        usage = usage_of(answers, prompt_tokens)
        if self.format.thoughts and (self.format.tags is not None or self.format.harmony):
            thoughts = sum(thought_tokens(answer, self.format, self.tokenizer) for answer in answers)
            usage["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        return usage

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        content = [
            self._one(one.token, one.logprob) | {"top_logprobs": [self._one(*other) for other in one.top]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.piece(token)
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(self.tokenizer.bytes_of(token))}


def usage_of(answers: Sequence[Answer], prompt_tokens: int) -> dict[str, Any]:
    """Tokens of a request, and what speculation did for it: all its answers together."""
    new, steps, drafted, accepted = (
        sum(answer.metrics[name] for answer in answers) for name in ("new_tokens", "steps", "drafted", "accepted")
    )
    attention = [answer.metrics["attention"] for answer in answers if answer.metrics["attention"] is not None]
    predicted, hits = (sum(one[name] for one in attention) for name in ("predictions", "hits"))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new,
        "total_tokens": prompt_tokens + new,
        "speculation": {
            "guarantee": answers[0].metrics["guarantee"],
            "target_passes": steps,
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            "acceptance_rate": ratio(accepted, drafted),
            "mean_accepted_tokens": ratio(new, steps),
            "attention_hit_rate": ratio(hits, predicted),
        },
    }
