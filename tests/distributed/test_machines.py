"""Two machines, which are two network namespaces of this one: a cable between them is all that they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.support import end, free_port
from tests.support.tiny_checkpoints import write_checkpoint

ADDRESSES = ("10.77.83.1", "10.77.83.2")


def ip(*arguments: str) -> bool:
    """Whether ``ip`` could do that."""
    try:
        return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def machines() -> Iterator[list[str]]:
    """The names of two network namespaces with a cable between them."""
    names = [f"spec-sdk-{os.getpid()}-{i}" for i in range(2)]
    cable = [f"sdk{os.getpid() % 10**6}-{i}" for i in range(2)]
    try:
        made = all(ip("netns", "add", name) for name in names)
        made = made and ip(
            "link", "add", cable[0], "netns", names[0], "type", "veth", "peer", cable[1], "netns", names[1]
        )
        for name, end_of_cable, address in zip(names, cable, ADDRESSES, strict=True):
            made = made and ip("-n", name, "link", "set", "lo", "up")
            made = made and ip("-n", name, "addr", "add", f"{address}/24", "dev", end_of_cable)
            made = made and ip("-n", name, "link", "set", end_of_cable, "up")
        if not made:
            pytest.skip("this system makes no network namespaces for this user")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def launched(launcher: str, machine: int, processes: int, port: int) -> list[str]:
    """What is typed on a machine before ``-m spec_sdk``."""
    where = ["--main_process_ip", ADDRESSES[0], "--main_process_port", str(port)]
    if launcher == "torchrun":
        where = ["--master_addr", ADDRESSES[0], "--master_port", str(port)]
        nodes = ["--nnodes", "2", "--node_rank", str(machine), "--nproc_per_node", str(processes)]
        return ["-m", "torch.distributed.run", *nodes, *where]
    count = ["--num_machines", "2", "--machine_rank", str(machine), "--num_processes", str(2 * processes)]
    return ["-m", "accelerate.commands.accelerate_cli", "launch", *count, *where]


@pytest.mark.full
@pytest.mark.parametrize(
    ("launcher", "processes"), [("torchrun", 1), ("torchrun", 2), ("accelerate", 1), ("accelerate", 2)]
)
def test_two_machines_give_the_tokens_of_one_process(
    launcher: str, processes: int, machines: list[str], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "model", "smollm", 3, num_attention_heads=6, num_key_value_heads=3)
    run = ["-m", "spec_sdk", "pipeline=easyspec_paper", "drafter.size=3", f"model.target={tmp_path / 'model'}"]
    run += ["prompt=a b c", "max_new_tokens=8", "ignore_eos=true"]
    port = free_port()
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = []
    for i, name in enumerate(machines):
        place = tmp_path / f"machine{i}"
        place.mkdir()
        command = ["ip", "netns", "exec", name, sys.executable, *launched(launcher, i, processes, port), *run]
        command += [f"output_dir={place / 'run'}", "backend.threads=1", "backend.shared_memory=false"]
        # a namespace has the machine's name, but not its address
        env = {**base, "GLOO_SOCKET_IFNAME": f"sdk{os.getpid() % 10**6}-{i}"}
        started.append(
            subprocess.Popen(
                command,
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    ended = end(started)
    assert [status for status, _, _ in ended] == [0, 0], ended
    one = tmp_path / "one"
    subprocess.run([sys.executable, *run, f"output_dir={one}"], check=True, capture_output=True, cwd=tmp_path)
    spread, alone = (json.loads((place / "metrics.json").read_text()) for place in (tmp_path / "machine0" / "run", one))
    assert spread["prompts"][0]["token_ids"] == alone["prompts"][0]["token_ids"]
    assert spread["machine"]["processes"] == 2 * processes
    # only the leader writes
    assert not (tmp_path / "machine1" / "run").exists()
