"""One answer in the making: what its events say, as text, up to a stop string."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from spec_sdk.api.answer import Answer, Part
from spec_sdk.api.cut_cycle import cut_cycle
from spec_sdk.api.step import Step, step_of
from spec_sdk.api.stop_strings import StopStrings
from spec_sdk.engine.token_logprobs import TokenLogprob
from spec_sdk.events import Event, EventLog
from spec_sdk.metrics import request_metrics
from spec_sdk.model.tokenizer import Tokenizer


@dataclass(eq=False)
class Mailbox:
    """The parts of a request's answers that nobody took yet.

    ``open``: those of its answers that go on, by the number that the token engine gave them.
    """

    request: int
    parts: deque[Part] = field(default_factory=deque)
    open: dict[int, Answering] = field(default_factory=dict)

    def take(self) -> Iterator[Part]:
        """All parts there are. Raises what the request failed with."""
        while self.parts:
            part = self.parts.popleft()
            if part.answer is not None and part.answer.error is not None:
                raise part.answer.error
            yield part


class Answering:
    """Takes the events of one of a request's answers and makes parts of them.

    Events go to ``log`` as they come. Where a stop string is complete, the rest of a step's tokens is cut off, in the
    log too: ``stopped`` then asks whoever steps to end the request. One that the first ``min_tokens`` tokens complete
    is text like other.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        sample: int,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        min_tokens: int,
        guarantee: Callable[[], str],
        log: EventLog,
        kept_special_tokens: Set[int] = frozenset(),
    ) -> None:
        self.error: Exception | None = None
        self.ended = False
        self._mailbox = mailbox
        self._sample = sample
        self._guarantee = guarantee
        self._log = log
        self._id = 0
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream(kept_special_tokens)
        self._stop = StopStrings(stop)
        self._min_tokens = min_tokens
        self._tokens: list[int] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._logprobs: list[TokenLogprob] = []
        self._steps: list[Step] = []
        self._text = ""
        self._reason = "interrupted"
        self._told_tokens = self._told_text = self._told_steps = 0

    @property
    def complete(self) -> bool:
        """Whether a stop string ended it: nothing that comes after is the answer's."""
        return self._stop.found

    @property
    def stopped(self) -> bool:
        """Whether one did, of which the engine of tokens does not know."""
        return self.complete and not self.ended

    def emit(self, event: Event) -> None:
        """Take the next event of the request."""
        self._id = event["request"]
        if event["event"] == "prefill" and "logprobs" in event:
            event = dict(event)
            # for whoever asked: logs and observers are not filled with prompts
            self._prompt_logprobs = [TokenLogprob(*told) for told in event.pop("logprobs")]
        elif event["event"] == "cycle":
            texts = self._take(event["tokens"])
            event = dict(cut_cycle(event, len(texts)))
            if "logprobs" in event:
                self._logprobs += [TokenLogprob(*told) for told in event["logprobs"]]
            if "trace" in event:
                self._steps.append(step_of(event, texts, self._tokenizer.piece))
                # for whoever asked: logs and observers are not filled with trees
                del event["trace"]
        elif event["event"] == "request_end":
            # what was held back may complete a stop string
            self._text += self._pushed(self._stream.flush()) + self._stop.flush()
            self._reason = "stop" if self._stop.found else event["finish_reason"]
            event = {**event, "finish_reason": self._reason}
            self.ended = True
        self._log.emit(event)

    def abandon(self, reason: str) -> None:
        """End it if no event did: a plugin that raises while its request ends keeps the last one back."""
        if not self.ended:
            self.emit({"event": "request_end", "request": self._id, "finish_reason": reason})

    def deliver(self) -> None:
        """Put what is new into the mailbox."""
        tokens, text = self._tokens[self._told_tokens :], self._text[self._told_text :]
        # the prompt's come with the first token
        of_prompt = [] if self._told_tokens else self._prompt_logprobs
        logprobs = self._logprobs[self._told_tokens :]
        steps = self._steps[self._told_steps :]
        self._told_tokens, self._told_text, self._told_steps = map(len, (self._tokens, self._text, self._steps))
        if tokens or text or self.ended:
            answer = self._answer() if self.ended else None
            self._mailbox.parts.append(
                Part(self._mailbox.request, text, tokens, self._sample, answer, logprobs, steps, of_prompt)
            )
        if self.ended:
            del self._mailbox.open[self._id]

    def _take(self, tokens: Sequence[int]) -> list[str]:
        """What each of those new tokens that the answer keeps adds to its text, stop strings included."""
        texts = []
        for token in tokens:
            self._tokens.append(token)
            texts.append(self._stream.push([token]))
            self._text += self._pushed(texts[-1])
            if self._stop.found:
                break
        return texts

    def _pushed(self, text: str) -> str:
        return self._stop.push(text, may_end=len(self._tokens) > self._min_tokens)

    def _answer(self) -> Answer:
        metrics: dict[str, Any] = request_metrics(self._log.of_request(self._id))
        metrics |= {"text": self._text, "guarantee": self._guarantee()}
        return Answer(
            self._text,
            self._tokens,
            self._reason,
            metrics,
            self._sample,
            self.error,
            self._logprobs,
            self._steps,
            self._prompt_logprobs,
        )
