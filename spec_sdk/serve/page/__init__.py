"""The page at ``/``: a prompt, and how its answer is speculated on, step by step.

It is an ordinary client of ``/v1``: what it shows is what ``stream_options.include_speculation`` tells anybody.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import Response

HTML, CSS, JS = (f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript"))
SVG = "image/svg+xml"
FILES = {
    "/": ("index.html", HTML),
    "/page/style.css": ("style.css", CSS),
    "/page/icon.svg": ("icon.svg", SVG),
    "/page/main.js": ("main.js", JS),
    "/page/client.js": ("client.js", JS),
    "/page/answer.js": ("answer.js", JS),
    "/page/figures.js": ("figures.js", JS),
    "/page/steps.js": ("steps.js", JS),
    "/page/tree.js": ("tree.js", JS),
}
"""Path → file beside this one and its media type."""
HEADERS = {
    # scripts and styles of its own only, none inline: what a model writes can be no script
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # of one version all, after an update too
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the page and its files. They hold nothing of requests, so they need no key."""
    for path, (name, media_type) in FILES.items():
        _add(app, path, files(__name__).joinpath(name).read_bytes(), media_type)


def _add(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)
