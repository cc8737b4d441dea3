"""An engine in a process that was forked from its own: refused where torch would wait for threads that it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys
import torch
from spec_sdk import Engine, UserError

def made():
    return Engine.from_pipeline("vanilla", target=sys.argv[1])

def told(what):
    signal.alarm(60)
    try:
        return what()
    except UserError as error:
        return error

def in_a_fork(what, threads=2):
    sys.stdout.flush()
    if os.fork() == 0:
        torch.set_num_threads(threads)
        print(told(what), flush=True)
        os._exit(0)
    os.wait()

torch.set_num_threads(2)
in_a_fork(lambda: made().generate("a", max_new_tokens=2)[0].finish_reason)
engine = made()
going_on = engine.stream("a", max_new_tokens=4)
for what in (lambda: engine.generate("a"), lambda: engine.add("a"), lambda: next(going_on), made):
    in_a_fork(what)
in_a_fork(lambda: engine.generate("a", max_new_tokens=2)[0].finish_reason, threads=1)
print(engine.generate("a", max_new_tokens=2)[0].finish_reason)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_an_engine_is_refused_in_a_fork_that_lacks_its_threads(checkpoint: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    first, *refused, alone, after = done.stdout.splitlines()
    assert first == alone == after == "length", done.stderr
    assert len(refused) == 4
    assert all(line.startswith("this process was forked from one with an engine, without") for line in refused), refused
