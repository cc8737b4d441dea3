"""What a client is told when a request is refused or fails: OpenAI's shape of errors, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """A request that is answered with an error. ``param``: the option that is wrong, where it is one."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def as_data(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return reply(self.as_data(), self.status, self.headers)


def unsound() -> Refusal:
    """What is told of a fault that is none of the client's."""
    return Refusal(500, "the server could not answer this request; its log says why", code="internal_error")


def encoded(data: Mapping[str, Any]) -> str:
    """JSON in ASCII: half a surrogate pair, which a client may send, is no UTF-8."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def reply(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(data), status, dict(headers or {}), "application/json")
