"""A pipeline without a model: it spells a fixed answer, in cycles of three tokens. Text and ids are characters."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from spec_sdk.contracts import SamplingParams
from spec_sdk.ranks import ALONE, Ranks
from spec_sdk.settings import Settings

ANSWER = "The quick brown fox jumps over the lazy dog. " * 20
STOP = 0
CONTEXT = 400


class FakeTokenizer:
    """One token per character."""

    has_chat_template = True
    stop_ids = frozenset({STOP})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(i) for i in ids if i != STOP)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode(f"<user>{messages[0]['content']}</user>")

    def stream(self) -> FakeTokenizer:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def flush(self) -> str:
        return ""


class FakeBackend:
    compiled: ClassVar[dict[str, Any]] = {}
    name = "fake"

    def expect(self, tokens: int) -> None:
        pass

    def describe(self) -> str:
        return "a fake machine"


@dataclass(frozen=True)
class FakePipeline:
    """``pause``: seconds per cycle, for tests that interrupt it. ``fail_at``: the request that raises ``failure``."""

    name: str
    sampling: SamplingParams
    per_cycle: int = 3
    pause: float = 0.0
    fail_at: int | None = None
    failure: BaseException | None = None
    guarantee: str = "exact"
    target_name: str = "fake-target"
    draft_name: str | None = "fake-draft"
    dtype: str = "float32"
    context: int = CONTEXT
    encoder: None = None
    backend: FakeBackend = FakeBackend()
    ranks: Ranks = ALONE
    device_groups: tuple[int, ...] = (1,)
    tokenizer: FakeTokenizer = FakeTokenizer()

    def vanilla(self) -> FakePipeline:
        return replace(self, name="vanilla", per_cycle=1, draft_name=None)

    def stream(
        self,
        prompt: Sequence[int],
        *,
        request_id: int = 0,
        max_new_tokens: int,
        ignore_eos: bool = False,
        emit: Callable[[dict[str, Any]], None],
    ) -> Iterator[list[int]]:
        about = {"request": request_id}
        emit({"event": "request_start", **about, "prompt_tokens": len(prompt)})
        reason = "interrupted"
        try:
            if request_id == self.fail_at and self.failure is not None:
                raise self.failure
            emit({"event": "prefill", **about, "seconds": 0.25})
            answer = [ord(c) for c in ANSWER[: max_new_tokens - 1]] + [STOP]
            for step, begin in enumerate(range(0, len(answer), self.per_cycle), start=1):
                time.sleep(self.pause)
                tokens = answer[begin : begin + self.per_cycle]
                emit(
                    {
                        "event": "cycle",
                        **about,
                        "step": step,
                        "prefix": len(prompt) + begin - 1,
                        "draft_s": 0.1,
                        "verify_s": 0.2,
                        "recover_s": 0.05,
                        "host_reads": 1,
                        "tree_nodes": self.per_cycle + 1,
                        "drafted": self.per_cycle - 1,
                        "accepted": len(tokens) - 1,
                        "tokens": tokens,
                        "attention": None,
                    }
                )
                yield tokens
            reason = "stop"
        finally:
            emit({"event": "request_end", **about, "finish_reason": reason})


def install(setitem: Callable[[Any, str, Any], None] = lambda d, k, v: d.__setitem__(k, v), **options: Any) -> None:
    """Put the fake in the place of :mod:`spec_sdk.pipeline`. ``options`` go to :class:`FakePipeline`."""
    module: Any = types.ModuleType("spec_sdk.pipeline")

    def build_pipeline(settings: Settings, registry: Any, backend: FakeBackend) -> FakePipeline:
        return FakePipeline(settings.pipeline.name, settings.sampling, **options)

    module.build_pipeline = build_pipeline
    module.joined_backend = lambda settings, registry: FakeBackend()
    setitem(sys.modules, "spec_sdk.pipeline", module)
