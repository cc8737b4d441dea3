"""The endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spec_sdk.api.answer import Answer
from spec_sdk.api.engine import Engine
from spec_sdk.say import say
from spec_sdk.serve.admission import Admission
from spec_sdk.serve.answering import T, left, parts_of, shut_down, unless
from spec_sdk.serve.asking import Asked, asked_of
from spec_sdk.serve.bodies import Body, ChatBody, CompletionBody
from spec_sdk.serve.counts import Counts
from spec_sdk.serve.faults import Refusal, encoded, reply
from spec_sdk.serve.guard import Guard, Limits
from spec_sdk.serve.options import ServeConfig
from spec_sdk.serve.page import add_page
from spec_sdk.serve.replies import ChatReplies, CompletionReplies, Replies
from spec_sdk.serve.wrong_bodies import unread_body, wrong_body
from spec_sdk.version import __version__

DONE = b"data: [DONE]\n\n"
LAST_EVENT_S = 1.0
"""How long a stream that has run out of time waits to tell so."""


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorDetail


ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with stream=true chunks of it, as server-sent events.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    },
    "4XX": {"model": ErrorBody, "description": "The request was refused."},
    "5XX": {"model": ErrorBody, "description": "The server failed."},
}


class Service:
    """An engine, and what the server knows besides. ``max_new_tokens``: of requests that say nothing of it. ``ending``:
    set when answers in progress are to end at once.
    """

    def __init__(self, engine: Engine, config: ServeConfig, model: str, max_new_tokens: int) -> None:
        self.engine = engine
        self.config = config
        self.model = model
        self.counts = Counts(config.max_num_seqs)
        self.began = int(time.time())
        self.ending = asyncio.Event()
        self._max_new_tokens = max_new_tokens
        self._admission = Admission(config.max_num_seqs, config.max_queue)

    async def answer(self, body: Body, kind: type[Replies], request: Request) -> Response:
        """The answer to a request, or the response that streams it. Raises Refusal, and ClientLeft."""
        if body.model not in (None, self.model):
            self.check_model(body.model)
        # reading a long prompt takes a while, in which others are served
        asked = await asyncio.to_thread(
            asked_of, body, self.engine, self._max_new_tokens, self.config.reasoning == "auto"
        )
        replies = kind(self.model, self.engine.tokenizer, asked.logprobs, asked.echoes, asked.format)
        if body.stream:
            usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            return Streamed(self, asked, replies, usage, request)
        with self._admission.admitted(asked.answers, asked.several), self.in_time():
            async with asyncio.timeout(self.config.timeout):
                answers = await self.while_there(request, self._answers(asked))
        self._log(replies.id, asked, answers)
        # telling of a long prompt takes a while too
        whole = await asyncio.to_thread(replies.whole, answers, asked.prompt_tokens)
        return reply(whole, headers={"X-Request-Id": replies.id})

    async def while_there(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives, while the client is there to get it, and the server to send it. Raises ClientLeft, and
        Refusal.
        """
        return await unless(work, left(request), shut_down(self.ending))

    def check_model(self, name: str) -> None:
        if name != self.model:
            message = f"model: {name[:200]!r} is not served here; there is {self.model!r}"
            raise Refusal(404, message, "model", "model_not_found")

    def about_model(self) -> dict[str, Any]:
        about = {"id": self.model, "object": "model", "created": self.began, "owned_by": "spec-sdk"}
        pipeline, chat = self.engine.pipeline.name, self.engine.tokenizer.has_chat_template
        about |= {"max_model_len": self.engine.context, "pipeline": pipeline, "guarantee": self.engine.guarantee}
        return about | {"chat_template": chat}

    async def stream(
        self, asked: Asked, replies: Replies, usage: bool, started: asyncio.Event
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events; ``started`` is set when there are any. Raises Refusal for want of room before that."""
        answers: dict[int, Answer] = {}
        with self._admission.admitted(asked.answers, asked.several):
            try:
                async with aclosing(parts_of(asked, self.engine, self.counts)) as parts:
                    async for index, part in parts:
                        started.set()
                        if part.answer is not None:
                            answers[index] = part.answer
                        for chunk in replies.chunks(index, part):
                            yield _event(chunk | {"usage": None} if usage else chunk)
            except Refusal as refusal:
                if not started.is_set():
                    raise
                yield _event(refusal.as_data())
                return
            ended = [answers[index] for index in range(asked.answers)]
            if usage:
                # looking at all tokens of long answers takes a while
                yield _event(await asyncio.to_thread(replies.usage_chunk, ended, asked.prompt_tokens))
            yield DONE
            self._log(replies.id, asked, ended)

    async def _answers(self, asked: Asked) -> list[Answer]:
        answers: dict[int, Answer] = {}
        async with aclosing(parts_of(asked, self.engine, self.counts)) as parts:
            async for index, part in parts:
                if part.answer is not None:
                    answers[index] = part.answer
        return [answers[index] for index in range(asked.answers)]

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Raises Refusal for the TimeoutError of what is within."""
        try:
            yield
        except TimeoutError:
            message = f"the answer was not there within {self.config.timeout:g} s"
            raise Refusal(504, message, code="timeout") from None

    def _log(self, name: str, asked: Asked, answers: Sequence[Answer]) -> None:
        if self.config.log_prompts:
            prompts = [self.engine.tokenizer.decode(tokens, skip_special_tokens=False) for tokens in asked.prompts]
            line = {"id": name, "prompts": prompts, "answers": [answer.text for answer in answers]}
            say(json.dumps(line))


class Streamed(Response):
    """Server-sent events as the engine makes them. The status waits for the first of them, so that it can be true."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, asked: Asked, replies: Replies, usage: bool, request: Request) -> None:
        self._service = service
        self._asked = asked
        self._replies = replies
        self._usage = usage
        self._request = request
        super().__init__(headers={"Cache-Control": "no-cache", "X-Request-Id": replies.id})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = asyncio.Event()
        try:
            with self._service.in_time():
                async with asyncio.timeout(self._service.config.timeout):
                    await self._service.while_there(self._request, self._send(send, begun))
        except Refusal as refusal:
            if not begun.is_set():
                raise
            await self._end(send, refusal)

    async def _end(self, send: Send, refusal: Refusal) -> None:
        """Tell why it ends here; whoever does not read that is cut off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENT_S):
                await send({"type": "http.response.body", "body": _event(refusal.as_data()), "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, begun: asyncio.Event) -> None:
        service = self._service
        async with aclosing(service.stream(self._asked, self._replies, self._usage, asyncio.Event())) as events:
            async for event in events:
                if not begun.is_set():
                    begun.set()
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {encoded(data)}\n\n".encode()


def make_app(service: Service, hosts: Sequence[str] = (), keys: Sequence[str] = ()) -> ASGIApp:
    """The server as an ASGI application. ``hosts``: see :class:`Limits`; ``keys``: of which clients must send one."""
    app = FastAPI(title="spec-sdk", version=__version__, description="OpenAI-compatible", docs_url=None, redoc_url=None)

    @app.post("/v1/completions", responses=ANSWERED, response_class=Response)
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue a text."""
        return await service.answer(body, CompletionReplies, request)

    @app.post("/v1/chat/completions", responses=ANSWERED, response_class=Response)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a chat."""
        return await service.answer(body, ChatReplies, request)

    told: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"schema": {"type": "object"}}}},
        "4XX": ANSWERED["4XX"],
    }

    @app.get("/v1/models", responses=told, response_class=Response)
    async def models() -> Response:
        """What is served: one model."""
        return reply({"object": "list", "data": [service.about_model()]})

    @app.get("/v1/models/{model:path}", responses=told, response_class=Response)
    async def model(model: str) -> Response:
        """The model, if it is the one that is served."""
        service.check_model(model)
        return reply(service.about_model())

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=told, response_class=Response)
    async def health() -> Response:
        """Whether the server answers."""
        return reply({"status": "ok"})

    metrics_told: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}, "4XX": ANSWERED["4XX"]}

    @app.get("/metrics", responses=metrics_told, response_class=Response)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.counts.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    if service.config.page:
        add_page(app)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        body = ChatBody if request.url.path.endswith("/chat/completions") else CompletionBody
        return wrong_body(error, body).response()

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        unread = unread_body(error.__cause__)
        return (unread or Refusal(error.status_code, str(error.detail), headers=error.headers)).response()

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> Response:
        return error.response()

    config = service.config
    limits = Limits(config.max_body, config.read_timeout, hosts, keys, config.access_log)
    return Guard(app, limits, service.counts, service.ending)
