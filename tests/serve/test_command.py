"""``python -m spec_sdk task=serve`` as a process of its own: start, drain, refusals."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spec_sdk.app import main
from tests.support.serving import PATIENCE_S, get


@pytest.fixture
def process(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "spec_sdk", "task=serve", "task.port=0", f"model.target={checkpoint}"]
    options = ["ignore_eos=true", "pipeline=prompt_lookup", "policy=fixed", f"task.drain_timeout={PATIENCE_S}"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving (\S+) with prompt_lookup \(exact\) at http://127\.0\.0\.1:(\d+)/v1", line):
            # its name is the last part of its path
            assert "/" not in found[1]
            return int(found[2])
    raise AssertionError("it ended before it served")


def test_sigterm_lets_answers_in_progress_end(process: subprocess.Popen[str]) -> None:
    port, told = port_of(process), list[str]()
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: told.extend(process.stderr or ()))
    reader.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = json.dumps({"prompt": "Why is the sky blue?", "max_tokens": 400, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    process.send_signal(signal.SIGTERM)
    text = response.read().decode()
    assert text.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in text
    connection.close()
    assert process.wait(PATIENCE_S) == 0
    reader.join(PATIENCE_S)
    assert "stopping" in "".join(told) and "Traceback" not in "".join(told)
    with pytest.raises(OSError):
        get(port, "/health")


def test_a_second_ctrl_c_ends_answers_at_once(process: subprocess.Popen[str]) -> None:
    port = port_of(process)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = json.dumps({"prompt": "Why is the sky blue?", "max_tokens": 4000, "stream": True, "n": 8})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.readline()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    last = response.read().decode().rstrip().rpartition("data: ")[2]
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert process.wait(PATIENCE_S) == 0
    told = [line for line in process.stderr if "POST" not in line]
    assert told == ["stopping: answers in progress are ended now\n"]


def test_bad_input_is_told_in_one_line(checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n")
    (tmp_path / "noted").write_text("sk-abc\n\n# c\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = {
            f"task.port={port}": f"task.port: 127.0.0.1:{port} cannot be listened on",
            "task.port=70000": "task.port: 70000 must be between 0 (a free one) and 65535",
            "task.host=not.a.host.invalid": "task.host: 'not.a.host.invalid' is no address",
            f"task.api_key_file={tmp_path / 'keys'}": "has no key",
            f"task.api_key_file={tmp_path / 'noted'}": "line 3 has more than ASCII without spaces",
            f"task.api_key_file={tmp_path / 'none'}": "none",
            "prompt=Hello": "prompt: task=serve answers what clients ask",
        }
        for option, told in cases.items():
            assert main(["task=serve", f"model.target={checkpoint}", option]) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith("error: ") and told in error, error


@pytest.mark.parametrize("tasks", ["serve", "generate,serve"])
def test_a_sweep_of_servers_is_refused(tasks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep"
    assert main(["--multirun", f"task={tasks}", "task.port=8101,8102", f"hydra.sweep.dir={sweep}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: task=serve: it serves until it is told to end")
    assert not sweep.exists()


def test_an_open_server_warns(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "spec_sdk", "task=serve", "task.port=0", "task.host=0.0.0.0"]
    with subprocess.Popen([*command, f"model.target={checkpoint}"], stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        told = next((line for line in started.stderr if line.startswith("warning")), "")
        started.kill()
    assert re.fullmatch(r"warning: whoever reaches http://\S+ may use it; task.api_key_file asks clients .*\n", told)


def test_a_missing_package_is_named(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spec_sdk.tasks.serve.NEEDS", ("no_such_package",))
    assert main(["task=serve", f"model.target={checkpoint}"]) == 2
    assert "pip install 'spec-sdk[serve]'" in capsys.readouterr().err
