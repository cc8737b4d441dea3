"""A server whose model several processes hold: what it answers, how it waits, and how it ends."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spec_sdk import Engine
from tests.distributed.support import start
from tests.support.serving import PATIENCE_S
from tests.support.text_checkpoints import write_text_checkpoint

TIMEOUT_S = 3
PROMPTS = ["a b c d", "the sky", "a b a b a b", "blue is the sky and the sky is blue"]
OPTIONS = ["drafter.size=3", "max_new_tokens=12", "ignore_eos=true"]


class Served:
    """Two processes that serve, and what each has told."""

    def __init__(self, checkpoint: Path) -> None:
        options = ["pipeline=easyspec_paper", *OPTIONS, f"model.target={checkpoint}", "task.access_log=false"]
        command = ["-m", "spec_sdk", "task=serve", "task.port=0", f"backend.timeout={TIMEOUT_S}", *options]
        self.processes = start(2, command, Path(__file__).parents[2])
        self.told: list[list[str]] = [[], []]
        self._readers = [threading.Thread(target=self._read, args=each) for each in enumerate(self.processes)]
        for reader in self._readers:
            reader.start()
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/v1", "".join(self.told[0]))):
            assert time.monotonic() < end and self.processes[0].poll() is None, self.told
            time.sleep(0.05)
        self._port = int(found[1])

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.told[rank].extend(process.stderr)

    def begin(self, prompt: str, **options: Any) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        body = json.dumps({"prompt": prompt, "temperature": 0, **options})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse()

    def answer(self, prompt: str) -> str:
        text: str = json.load(self.begin(prompt))["choices"][0]["text"]
        return text

    def ended(self) -> list[int]:
        statuses = [process.wait(PATIENCE_S) for process in self.processes]
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return statuses


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_text_checkpoint(directory, chat=False)
    return directory


@pytest.fixture
def served(checkpoint: Path) -> Iterator[Served]:
    serving = Served(checkpoint)
    yield serving
    for process in serving.processes:
        process.kill()
    serving.ended()


def test_answers_are_those_of_one_process_whenever_they_are_asked_for(served: Served, checkpoint: Path) -> None:
    engine = Engine.from_pipeline("easyspec_paper", target=checkpoint, overrides=OPTIONS)
    expected = [answer.text for answer in engine.generate(PROMPTS)]
    assert all(expected)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert [*pool.map(served.answer, PROMPTS)] == expected
    # longer than processes wait for one that is stuck
    time.sleep(2 * TIMEOUT_S)
    assert served.answer(PROMPTS[0]) == expected[0]
    # as a launcher does, which tells all of them to end
    streamed = served.begin(PROMPTS[1], max_tokens=200, stream=True)
    streamed.readline()
    for process in served.processes:
        process.send_signal(signal.SIGTERM)
    text = streamed.read().decode()
    assert text.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in text
    assert served.ended() == [0, 0]
    assert "error" not in "".join(served.told[0]) and not served.told[1]


@pytest.mark.parametrize("asked", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_process_that_is_gone_ends_the_server(asked: bool, served: Served) -> None:
    """Also one that nobody asks anything."""
    assert served.answer(PROMPTS[0])
    served.processes[1].kill()
    if asked:
        assert served.begin(PROMPTS[0]).status == 500
    assert served.ended() == [3, -signal.SIGKILL]
    last = served.told[0][-1]
    assert last.startswith("error: another process of this run went away") and "Traceback" not in "".join(
        served.told[0]
    )
