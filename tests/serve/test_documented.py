"""The curl commands of README and docs, against a server."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

import pytest

from tests.docs.pages import PAGES, Command, commands
from tests.support.serving import PATIENCE_S, Served, post

CURLS = [command for page in PAGES for command in commands(page) if command.text.startswith("curl ")]


def test_there_are_some() -> None:
    assert {command.page.name for command in CURLS} >= {"README.md", "serving.md"}


@pytest.mark.parametrize("command", CURLS, ids=lambda command: command.where)
def test_it_is_answered(command: Command, server: Served) -> None:
    typed = shlex.split(command.text.replace("http://127.0.0.1:8000", server.url))
    if shutil.which("curl"):
        reply = subprocess.run(typed, capture_output=True, timeout=PATIENCE_S, check=True).stdout
    else:
        path = next(word for word in typed if word.startswith("http")).removeprefix(server.url)
        status, reply = post(server.port, path, typed[typed.index("-d") + 1].encode())
        assert status == 200
    answer = json.loads(reply)
    assert answer["choices"][0]["message"]["content"] and answer["usage"]["completion_tokens"]
