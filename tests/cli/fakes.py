"""A pipeline without a model: it spells a fixed answer, in cycles of three tokens. Text and ids are characters."""

from __future__ import annotations

import functools
import itertools
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from spec_sdk.compiled_constraints import CompiledConstraints
from spec_sdk.contracts import SamplingParams
from spec_sdk.engine.token_engine import TokenRequest
from spec_sdk.engine.turn import Progress
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
        return self.encode("".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in messages))

    def stream(self, kept: Set[int] = frozenset()) -> FakeTokenizer:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return self.decode(ids)

    def flush(self) -> str:
        return ""


class FakeBackend:
    compiled: ClassVar[dict[str, Any]] = {}
    name = "fake"
    hardware = "a fake processor"

    def expect(self, tokens: int) -> None:
        pass

    def describe(self) -> str:
        return "a fake machine"


class FakeEngine:
    """An engine of tokens that answers one request after the other."""

    def __init__(self, pipeline: FakePipeline) -> None:
        self.pipeline = pipeline
        self._requests: list[tuple[int, TokenRequest, Iterator[Progress]]] = []
        self._numbers = itertools.count()

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def check(self, request: TokenRequest) -> None:
        pass

    def add(self, request: TokenRequest) -> int:
        number = next(self._numbers)
        request.emit({"event": "request_start", "request": number, "prompt_tokens": len(request.prompt)})
        self._requests.append((number, request, self._steps(number, request)))
        return number

    def step(self) -> list[Progress]:
        number, request, steps = self._requests[0]
        try:
            progress = next(steps)
        except BaseException:
            self.cancel(number)
            raise
        if progress.finish_reason is not None:
            self.cancel(number, progress.finish_reason)
        return [progress]

    def cancel(self, number: int, reason: str = "interrupted") -> None:
        for entry in self._requests:
            if entry[0] == number:
                self._requests.remove(entry)
                entry[1].emit({"event": "request_end", "request": number, "finish_reason": reason})

    def _steps(self, number: int, request: TokenRequest) -> Iterator[Progress]:
        about, per_cycle = {"request": number}, self.pipeline.per_cycle
        failure = self.pipeline.failure if number == self.pipeline.fail_at else None
        if failure is not None and not self.pipeline.fail_after:
            raise failure
        request.emit({"event": "prefill", **about, "seconds": 0.25})
        answer = [ord(c) for c in ANSWER[: request.max_new_tokens - 1]] + [STOP]
        for step, begin in enumerate(range(0, len(answer), per_cycle), start=1):
            time.sleep(self.pipeline.pause)
            if failure is not None and step > self.pipeline.fail_after:
                raise failure
            tokens = answer[begin : begin + per_cycle]
            request.emit(
                {
                    "event": "cycle",
                    **about,
                    "step": step,
                    "prefix": len(request.prompt) + begin - 1,
                    "draft_s": 0.1,
                    "verify_s": 0.2,
                    "recover_s": 0.05,
                    "host_reads": 1,
                    "tree_nodes": per_cycle + 1,
                    "drafted": per_cycle - 1,
                    "accepted": len(tokens) - 1,
                    "tokens": tokens,
                    "attention": None,
                }
            )
            yield Progress(number, tokens, "stop" if tokens[-1] == STOP else None)


@dataclass(frozen=True)
class FakePipeline:
    """``pause``: seconds per cycle, for tests that interrupt it. ``fail_at``: the request that raises ``failure``,
    after ``fail_after`` cycles.
    """

    name: str
    sampling: SamplingParams
    per_cycle: int = 3
    pause: float = 0.0
    fail_at: int | None = None
    failure: BaseException | None = None
    fail_after: int = 0
    guarantee: str = "exact"
    target_name: str = "fake-target"
    draft_name: str | None = "fake-draft"
    dtype: str = "float32"
    memory: dict[str, int] = field(default_factory=lambda: {"target_weights": 1000, "kv_cache": 200})
    rounds_rows: bool = False
    deterministic: bool = False
    context: int = CONTEXT
    encoder: None = None
    backend: FakeBackend = FakeBackend()
    ranks: Ranks = ALONE
    device_groups: tuple[int, ...] = (1,)
    tokenizer: FakeTokenizer = FakeTokenizer()

    def vanilla(self) -> FakePipeline:
        return replace(self, name="vanilla", per_cycle=1, draft_name=None)

    @functools.cached_property
    def engine(self) -> FakeEngine:
        return FakeEngine(self)

    @property
    def constraints(self) -> Any:
        return CompiledConstraints(cast(Any, self.tokenizer), CONTEXT)

    def guarantee_under(self, sampling: SamplingParams) -> str:
        return self.guarantee


def install(setitem: Callable[[Any, str, Any], None] = lambda d, k, v: d.__setitem__(k, v), **options: Any) -> None:
    """Put the fake in the place of :mod:`spec_sdk.pipeline`. ``options`` go to :class:`FakePipeline`."""
    module: Any = types.ModuleType("spec_sdk.pipeline")

    def build_pipeline(settings: Settings, registry: Any, backend: FakeBackend) -> FakePipeline:
        return FakePipeline(settings.pipeline.name, settings.sampling, **options)

    module.build_pipeline = build_pipeline
    module.joined_backend = lambda settings, registry: FakeBackend()
    setitem(sys.modules, "spec_sdk.pipeline", module)
