"""What launchers say of themselves, and ``accelerate launch`` as people type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec_sdk.app import main
from spec_sdk.errors import UserError
from spec_sdk.ranks import launched_processes, launched_rank, under_launcher
from spec_sdk_backends.accelerate import AccelerateBackend, AccelerateConfig
from spec_sdk_backends.accelerate_launch import Asked, asked_processes
from tests.support.configured import plugin_of
from tests.support.tiny_checkpoints import write_checkpoint

VARIABLES = ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "ACCELERATE_MIXED_PRECISION", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_who_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (launched_processes(), launched_rank(), under_launcher()) == (1, 0, False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert (launched_processes(), under_launcher()) == (1, True)
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "2")
    assert (launched_processes(), launched_rank()) == (4, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert (launched_processes(), launched_rank()) == (2, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE: 'x' in the environment is no number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK: 2 in the environment is no rank of 2 processes"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "abc"}, "MASTER_PORT: 'abc' in the environment is no port"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "99999"},
            "MASTER_PORT: '99999' in the environment is no port",
        ),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": ""}, "MASTER_PORT: '' in the environment is no port"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": ""}, "MASTER_ADDR: it is empty in the environment"),
    ],
)
def test_variables_of_no_launcher_are_refused(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["prompt=x"]) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("python /bin/accelerate launch --num_processes 2 -m spec_sdk prompt=x", Asked(2)),
        ("python /bin/accelerate launch --num-processes=3 --cpu -m spec_sdk", Asked(3)),
        ("python -m accelerate.commands.launch --num_processes 4 -m spec_sdk", Asked(4)),
        ("python /bin/accelerate-launch --num_processes 2 -m spec_sdk", Asked(2)),
        ("accelerate launch --num_machines 2 --machine_rank 1 --num_processes 6 -m spec_sdk", Asked(3, 2, 1)),
        ("accelerate launch --num_machines 2 --num_processes 2 -m spec_sdk", Asked(1, 2, 0)),
        ("accelerate launch --config_file FILE -m spec_sdk", Asked(2, 2, 1)),
        ("accelerate launch --config_file FILE --machine_rank 0 -m spec_sdk", Asked(2, 2, 0)),
        ("bash", None),
    ],
)
def test_how_many_processes_accelerate_was_asked_for(command: str, asked: Asked | None, tmp_path: Path) -> None:
    fields = {"num_processes": 4, "num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1"}
    fields |= {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_CPU", "mixed_precision": "no"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**fields, "use_cpu": True, "debug": False, "main_process_port": 29500}))
    assert asked_processes(command.replace("FILE", str(file)).split()) == asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "backend.device"),
        ({"timeout": 0}, "backend.timeout"),
        ({"timeout": float("nan")}, "backend.timeout"),
        ({"timeout": float("inf")}, "backend.timeout"),
        ({"threads": -1}, "backend.threads"),
    ],
)
def test_the_backend_refuses_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plugin_of("backend", "accelerate", **options)


def test_one_process_is_a_group_of_one() -> None:
    backend = AccelerateBackend(AccelerateConfig(device="cpu", threads=1))
    assert (backend.ranks.size, backend.ranks.is_leader, backend.device.type) == (1, True, "cpu")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tell cores apart")
def test_a_pinned_process_stays_on_its_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        AccelerateBackend(AccelerateConfig(device="cpu", threads=1, pin=True))
        assert len(os.sched_getaffinity(0)) == 1
        with pytest.raises(UserError, match=r"backend\.pin: 1 processes of "):
            AccelerateBackend(AccelerateConfig(device="cpu", threads=len(before) + 1, pin=True))
    finally:
        os.sched_setaffinity(0, before)


def test_a_sweep_under_a_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--multirun", "pipeline=vanilla,sd_chain"]) == 2
    assert capsys.readouterr().err.startswith("error: --multirun: ")


def test_a_task_of_one_process_is_refused_under_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["task=estimate"]) == 2
    assert "\nerror: task=estimate: it runs in one process, and 2 were launched" in capsys.readouterr().err


def launch(directory: Path, *arguments: str) -> str:
    """stdout of ``accelerate launch --num_processes 2 -m spec_sdk …``, which must succeed."""
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "2"]
    command += ["-m", "spec_sdk", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def token_ids(directory: Path) -> list[int]:
    metrics = json.loads((directory / "metrics.json").read_text())
    ids: list[int] = metrics["prompts"][0]["token_ids"]
    return ids


@pytest.mark.full
def test_accelerate_launch_gives_the_tokens_of_one_process(tmp_path: Path) -> None:
    """The command of the issue, on a tiny model and on the default one, whose rows are not rounded: that magnifies the
    order of sums.
    """
    write_checkpoint(tmp_path / "tiny", "smollm")
    for model in ([f"model.target={tmp_path / 'tiny'}"], []):
        run = ["pipeline=easyspec_paper", "prompt=Why is the sky blue?", "max_new_tokens=32", *model]
        run += ["backend.activations=exact"]
        launch(tmp_path, *run, f"output_dir={tmp_path / 'two'}")
        subprocess.run(
            [sys.executable, "-m", "spec_sdk", *run, f"output_dir={tmp_path / 'one'}"],
            check=True,
            capture_output=True,
            cwd=tmp_path,
        )
        assert token_ids(tmp_path / "two") == token_ids(tmp_path / "one")
        machine = json.loads((tmp_path / "two" / "metrics.json").read_text())["machine"]
        assert machine["processes"] == 2
