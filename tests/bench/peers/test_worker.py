"""A peer's process: stopped while it is not its turn, ended with the run, and told apart from a request that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import NoAnswer, NotAvailable, Worker, peer_worker
from tests.bench.peers.echo import ECHO


def becomes(process: psutil.Process, status: str) -> bool:
    """Whether it has this status within some seconds, or is gone where that is waited for: a signal takes its time."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if process.status() == status:
                return True
        except psutil.NoSuchProcess:
            return status == psutil.STATUS_ZOMBIE
        time.sleep(0.01)
    return False


def test_a_worker_is_stopped_between_requests_and_has_no_thread_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    # multiprocessing leaves one that keeps count of what is shared
    before = psutil.Process().children()
    with Worker([sys.executable, "-c", ECHO], {"MINE": "1"}) as worker:
        assert worker.facts == {"threads": [], "mine": "1"}
        (process,) = (child for child in psutil.Process().children() if child not in before)
        for _ in range(2):
            answered = worker.ask(Request([7, 8, 9, 10], 3))
            assert answered.tokens == [7, 8, 9] and answered.first_tokens == 1
            assert 0 < answered.first_s <= answered.total_s
            assert becomes(process, psutil.STATUS_STOPPED)
    assert not process.is_running()


def test_a_worker_that_fails_says_why_in_one_line() -> None:
    with pytest.raises(NotAvailable, match="No module named 'there_is_none'"):
        Worker([sys.executable, "-c", "import there_is_none"], {})
    with pytest.raises(NotAvailable, match="No such file"):
        Worker(["there-is-no-such-python"], {})
    failing = ECHO.replace("take(request.tokens[:1])", "sys.exit('out of order')")
    with (
        Worker([sys.executable, "-c", failing], {"MINE": "1"}) as worker,
        pytest.raises(NotAvailable, match="of order"),
    ):
        worker.ask(Request([1], 1))


def test_a_request_that_fails_is_said_in_a_line_and_the_next_is_answered() -> None:
    failing = ECHO.replace(
        "    take(request.tokens[:1])",
        "    if not request.tokens: raise ValueError('no prompt\\nat all')\n    take([1])",
    )
    with Worker([sys.executable, "-c", failing], {"MINE": "1"}) as worker:
        with pytest.raises(NoAnswer, match="^no prompt$"):
            worker.ask(Request([], 1))
        assert worker.ask(Request([5], 1)).tokens == [1]
    silent = ECHO.replace("    take(request.tokens[:1])\n    take(request.tokens[1:request.new_tokens])", "    pass")
    with Worker([sys.executable, "-c", silent], {"MINE": "1"}) as worker, pytest.raises(NoAnswer, match="no token"):
        worker.ask(Request([5], 1))


def test_a_process_that_was_killed_is_told_by_its_signal() -> None:
    killed = ECHO.replace("    take(request.tokens[:1])", "    os.kill(os.getpid(), 9)")
    with Worker([sys.executable, "-c", killed], {"MINE": "1"}) as worker:
        for _ in range(2):
            with pytest.raises(NotAvailable, match="ended by SIGKILL"):
                worker.ask(Request([1], 1))


RUN = """
import sys, time
from spec_sdk.bench.peers.serving import Request
from spec_sdk.bench.peers.worker import Worker
worker = Worker([sys.executable, "-c", sys.argv[1]], {"MINE": "1"})
worker.ask(Request([1, 2], 2))
print(worker._process.pid, flush=True)
time.sleep(60)
"""


def test_a_run_that_is_killed_takes_its_stopped_workers_along() -> None:
    with subprocess.Popen([sys.executable, "-c", RUN, ECHO], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = psutil.Process(int(run.stdout.readline()))
        assert becomes(worker, psutil.STATUS_STOPPED)
        run.kill()
        run.wait()
        if not becomes(worker, psutil.STATUS_ZOMBIE):
            os.kill(worker.pid, signal.SIGKILL)
            pytest.fail("the worker outlived the run")


def test_a_peer_worker_needs_nothing_but_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    shown = subprocess.run([bare, "-c", "import spec_sdk"], stderr=subprocess.PIPE, text=True)
    assert "No module named 'spec_sdk'" in shown.stderr
    with peer_worker([str(bare), "-c", ECHO.replace('os.environ["MINE"]', "[*sys.modules]")]) as worker:
        assert worker.ask(Request([4, 5], 2)).tokens == [4, 5]
        own = {name for name in worker.facts["mine"] if name.startswith("spec_sdk")}
    assert "spec_sdk.bench.peers.serving" in own and "spec_sdk.model" not in own
    with (
        pytest.raises(NotAvailable, match="No module named 'llama_cpp'"),
        peer_worker([str(bare), "-m", "spec_sdk.bench.peers.llama_worker", "none.gguf", "--context", "128"]),
    ):
        pass
