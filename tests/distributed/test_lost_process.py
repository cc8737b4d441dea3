"""A process that dies ends the run of the others: in one line, with a status, and soon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file

from spec_sdk_backends.accelerate import _while_all_are_there
from tests.distributed.support import end, start
from tests.support.tiny_checkpoints import write_checkpoint

LOST, INTERRUPTED, BAD_INPUT = 3, 130, 2
SOON_S = 60
"""Far below the timeout after which a process gives the others up by itself."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run that goes on for long."""
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, "smollm", max_position_embeddings=16384)
    run = ["-m", "spec_sdk", f"model.target={directory}", "prompt=a b c", "max_new_tokens=16000", "ignore_eos=true"]
    return [*run, "output_dir=run"]


TWO_GROUPS = ["pipeline=alspec", "predictor.size=1", "attention_verifier.threshold=0.5"]
"""Speculation on attention: a rank waits for the other one's messages, not for all ranks'."""

DIVIDED_DRAFT = ["pipeline=sd_chain", "backend.groups.draft=[0,1]"]
"""Two of three ranks draft, and the third waits for the leader meanwhile."""


@pytest.mark.parametrize(
    ("victim", "signal_number", "statuses", "options"),
    [
        (1, signal.SIGKILL, [LOST, -signal.SIGKILL], []),
        (1, signal.SIGKILL, [LOST, -signal.SIGKILL], TWO_GROUPS),
        pytest.param(0, signal.SIGKILL, [-signal.SIGKILL, LOST], [], marks=pytest.mark.full),
        pytest.param(0, signal.SIGKILL, [-signal.SIGKILL, LOST], TWO_GROUPS, marks=pytest.mark.full),
        pytest.param(0, signal.SIGINT, [INTERRUPTED, INTERRUPTED], [], marks=pytest.mark.full),
        pytest.param(0, signal.SIGINT, [INTERRUPTED, INTERRUPTED], TWO_GROUPS, marks=pytest.mark.full),
        pytest.param(0, signal.SIGTERM, [143, 143], [], marks=pytest.mark.full),
        pytest.param(3, signal.SIGKILL, [LOST, LOST, LOST, -signal.SIGKILL], TWO_GROUPS, marks=pytest.mark.full),
        pytest.param(1, signal.SIGKILL, [LOST, -signal.SIGKILL, LOST], DIVIDED_DRAFT, marks=pytest.mark.full),
        pytest.param(2, signal.SIGKILL, [LOST, LOST, -signal.SIGKILL], DIVIDED_DRAFT, marks=pytest.mark.full),
    ],
)
def test_the_others_end_too(
    victim: int,
    signal_number: signal.Signals,
    statuses: list[int],
    options: list[str],
    command: list[str],
    tmp_path: Path,
) -> None:
    processes = start(len(statuses), [*command, *options], tmp_path)
    assert processes[0].stdout is not None
    # it is in the middle of generating once a first text is there
    assert processes[0].stdout.read(3)
    began = time.monotonic()
    processes[victim].send_signal(signal_number)
    ended = end(processes)
    assert time.monotonic() - began < SOON_S
    assert [status for status, _, _ in ended] == statuses
    told = [line for _, _, err in ended for line in err.splitlines() if "another process" in line]
    assert len(told) == (LOST in statuses), ended
    for _, _, err in ended:
        assert "Traceback" not in err
    survivor = ended[0 if victim else 1]
    if statuses[0] == LOST:
        assert survivor[2].rstrip().splitlines()[-1].startswith("error: another process of this run went away")
        assert (tmp_path / "run" / "metrics.json").is_file()


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_process_that_stands_still_ends_the_others(victim: int, command: list[str], tmp_path: Path) -> None:
    """It answers nothing and closes nothing, also where it holds the store that all met at."""
    processes = start(2, [*command, "backend.timeout=3"], tmp_path)
    other = processes[1 - victim]
    try:
        assert processes[0].stdout is not None and processes[0].stdout.read(3)
        began = time.monotonic()
        processes[victim].send_signal(signal.SIGSTOP)
        assert other.wait(SOON_S) == LOST
        assert time.monotonic() - began < SOON_S
    finally:
        processes[victim].send_signal(signal.SIGCONT)
        ended = end(processes)
    told = [line for line in ended[1 - victim][2].splitlines() if "another process" in line]
    assert len(told) == 1 and "stands still" in told[0]
    assert [status for status, _, _ in ended] == [LOST, LOST]


@pytest.mark.full
def test_bad_input_is_told_once_and_is_every_rank_s_status(command: list[str], tmp_path: Path) -> None:
    for arguments in (["prompt="], ["drafter.widht=3"], ["backend=cpu"], ["model.target=nowhere"], ["--multirun"]):
        ended = end(start(2, [*command, *arguments, "max_new_tokens=4"], tmp_path))
        lines = [line for _, _, err in ended for line in err.splitlines() if not line.startswith("spec-sdk ")]
        assert [line.partition(":")[0] for line in lines] == ["error"], (arguments, lines)
        assert [status for status, _, _ in ended] == [BAD_INPUT, BAD_INPUT], arguments


MISMATCHED = {
    "another option": ("drafter.min_probability=0.2", "drafter.min_probability is 0.2 here and "),
    "another dtype": ("model.dtype=bfloat16", "model.dtype is 'bfloat16' here and "),
    "another way of sharing": ("backend.shared_memory=false", "backend.shared_memory is False here and True there"),
    "another length": ("max_new_tokens=5", "max_new_tokens is 5 here and 4 there"),
}


@pytest.mark.parametrize(
    "case", [name if name == "another option" else pytest.param(name, marks=pytest.mark.full) for name in MISMATCHED]
)
def test_a_process_with_other_options_ends_the_run_in_one_line(case: str, command: list[str], tmp_path: Path) -> None:
    option, message = MISMATCHED[case]
    began = time.monotonic()
    ended = end(start(2, [*command, "max_new_tokens=4"], tmp_path, [option]))
    assert time.monotonic() - began < SOON_S
    lines = [line for _, _, err in ended for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "process 1 of 2 was started with other options than the leader: " + message in lines[0]
    assert [status for status, _, _ in ended] == [BAD_INPUT, BAD_INPUT]
    assert all("Traceback" not in err for _, _, err in ended)


OTHER_CHECKPOINTS: dict[str, tuple[dict[str, Any], str]] = {
    "other weights": ({}, "layers.3.mlp.down_proj.weight is "),
    "another norm": ({"rms_norm_eps": 1e-3}, "rms_norm_eps is 0.001 here and "),
    "fewer layers": ({"num_hidden_layers": 4}, "layers is 4 here and 5 there"),
    "fewer heads": ({"num_attention_heads": 4, "num_key_value_heads": 2}, "heads is 4 here and 6 there"),
    "fewer tokens": ({"vocab_size": 90}, "vocab_size is 90 here and 96 there"),
}


@pytest.mark.parametrize(
    "case",
    [
        name if name in ("other weights", "fewer layers") else pytest.param(name, marks=pytest.mark.full)
        for name in OTHER_CHECKPOINTS
    ],
)
def test_a_process_with_another_checkpoint_ends_the_run_in_one_line(case: str, tmp_path: Path) -> None:
    """A path may be another disk on another machine. The draft model's is compared too."""
    fields, message = OTHER_CHECKPOINTS[case]
    places = [tmp_path / name for name in ("leader", "other")]
    for place, own in zip(places, ({}, fields), strict=True):
        write_checkpoint(place / "model", "smollm", 3, **{"num_attention_heads": 6, "num_key_value_heads": 3, **own})
    if case == "other weights":
        file = places[1] / "model" / "model.safetensors"
        tensors = load_file(file)
        tensors["model.layers.3.mlp.down_proj.weight"] *= 1.5
        save_file(tensors, file)
    began = time.monotonic()
    run = ["-m", "spec_sdk", "pipeline=vanilla", "model.target=./model", "prompt=a b c", "max_new_tokens=4"]
    ended = end(start(2, run, places))
    assert time.monotonic() - began < SOON_S
    assert [status for status, _, _ in ended] == [BAD_INPUT, BAD_INPUT], ended
    lines = [line for _, _, err in ended for line in err.splitlines() if "error: " in line]
    told = "process 1 of 2 has another checkpoint at ./model than the leader: "
    assert len(lines) == 1 and told in lines[0] and message in lines[0], ended


def test_a_process_whose_leader_is_gone_says_so_in_one_line_and_soon(command: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    leader, late = start(2, [*command, "backend.timeout=3"], tmp_path)
    leader.kill()
    _, (status, out, err) = end([leader, late])
    assert time.monotonic() - began < SOON_S and (status, out) == (LOST, ""), err
    *waiting, line = err.splitlines()
    assert line.startswith("process 1 of 2: error: the processes of this run did not find each other"), err
    assert all(told.startswith("waiting for the leader at 127.0.0.1:") for told in waiting) and len(waiting) <= 1


def test_a_process_that_fails_before_it_met_the_others_says_why(command: list[str], tmp_path: Path) -> None:
    """The leader, who would wait for ten minutes, is told."""
    began = time.monotonic()
    ended = end(start(2, [*command, "max_new_tokens=4"], tmp_path, ["drafter.widht=3"]))
    assert time.monotonic() - began < SOON_S
    assert [status for status, _, _ in ended] == [BAD_INPUT, BAD_INPUT]
    assert ended[0][2].endswith("error: process 1 of 2 ended before it met the others, and says why\n")
    assert ended[1][2].startswith("process 1 of 2: error: ") and "widht" in ended[1][2]
    assert len(ended[1][2].splitlines()) == 1


@pytest.mark.full
def test_who_waits_long_says_for_whom(command: list[str], tmp_path: Path) -> None:
    leader, missing = start(2, [*command, "backend.timeout=13"], tmp_path)
    missing.kill()
    (status, _, err), _ = end([leader, missing])
    lines = err.splitlines()
    assert status == LOST and "waiting for process 1 of 2, for 13 s at most (backend.timeout)" in lines
    assert lines[-1].startswith("error: the processes of this run cannot reach each other (not all of 2 processes came")


@pytest.mark.parametrize("end_leader", [True, False])
def test_accelerate_s_further_process_does_not_outlive_the_one_that_started_it(
    end_leader: bool, command: list[str], tmp_path: Path
) -> None:
    """Nor the other way round, before they have met."""
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "2"]
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    launcher = subprocess.Popen(
        [*launch, *command],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ranks: list[psutil.Process] = []
    try:
        until = time.monotonic() + SOON_S
        while len(ranks) < 2 and time.monotonic() < until:
            children = psutil.Process(launcher.pid).children(recursive=True)
            ranks = [child for child in children if "spec_sdk" in child.cmdline()]
        ranks[0 if end_leader else 1].kill()
        _, alive = psutil.wait_procs(ranks, SOON_S)
        assert not alive and launcher.wait(SOON_S) != 0
    finally:
        for process in [*ranks, launcher]:
            with contextlib.suppress(psutil.Error):
                process.kill()


def test_of_three_processes_one_that_is_refused_ends_all_with_its_status(command: list[str], tmp_path: Path) -> None:
    """The third, which has met the leader meanwhile, says nothing of its own."""
    ended = end(start(3, [*command, "max_new_tokens=4"], tmp_path, ["drafter.widht=3"]))
    assert [status for status, _, _ in ended] == [BAD_INPUT] * 3
    assert ended[0][2].endswith("error: process 2 of 3 ended before it met the others, and says why\n")
    assert ended[1][2] == "" and "widht" in ended[2][2]


def test_a_process_that_ends_while_torch_joins_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, told = list[int](), threading.Event()

    def end_process(status: int) -> None:
        ended.append(status)
        told.set()

    monkeypatch.setattr("spec_sdk_backends.accelerate.os._exit", end_process)
    monkeypatch.setattr("spec_sdk_backends.accelerate.LOOK_S", 0.01)
    meeting: Any = SimpleNamespace(lifelines=SimpleNamespace(is_cut=lambda: True))
    with _while_all_are_there(meeting):
        assert told.wait(SOON_S)
    assert ended[0] == LOST


def test_a_stranger_at_the_leader_s_port_keeps_nobody_waiting(command: list[str], tmp_path: Path) -> None:
    """It takes the connection and says nothing, for which torch has no timeout."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(stranger.getsockname()[1])}
        ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, *command, "backend.timeout=1"],
            cwd=tmp_path,
            env={**os.environ, **where, **ranks},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SOON_S,
        )
    assert run.returncode == LOST
    assert run.stderr.startswith("process 1 of 2: error: the processes of this run did not find each other")
